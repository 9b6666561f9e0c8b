"""The commands of `rewardsmith`: their options in the modules `*_app`, their work in the others."""
