"""infra/: what can be known of containers, manifests and job templates without running them.

Compose and Dockerfile: structure. Kubernetes: the client's own models take every field. Job templates: the workers' own
classes resolve them into what they would send.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import yaml

from flows.deployments import POOL
from flows.work_pool import job_variables
from tests import small_repository
from tests.small_repository import clean_environment, command

ROOT = Path(__file__).resolve().parent.parent
INFRA = ROOT / "infra"
BASE = INFRA / "kubernetes" / "base"
COMPOSE = yaml.safe_load((INFRA / "compose.yaml").read_text(encoding="utf-8"))
KUSTOMIZATIONS = {
    path.parent: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((INFRA / "kubernetes").rglob("kustomization.yaml"))
}
MANIFESTS = [
    (path.name, document)
    for path in sorted((INFRA / "kubernetes").rglob("*.yaml"))
    if path.name not in ("kustomization.yaml", "namespace.yaml")
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
TEMPLATES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (INFRA / "prefect").glob("*.json")}
PAGE = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
SECRET = re.compile(r"PASSWORD|SECRET|_KEY|AUTH|DATABASE|_USER$")
#: Of what looks like one, the names that hold none.
PUBLIC = {"POSTGRES_USER", "PREFECT_INTEGRATIONS_KUBERNETES_WORKER_API_AUTH_STRING_SECRET_NAME"}
PUBLIC |= {"PREFECT_INTEGRATIONS_KUBERNETES_WORKER_API_AUTH_STRING_SECRET_KEY"}
#: Images of the Dockerfile, in its order.
TARGETS = ["servers", "stages"]
PINNED = re.compile(r"[\w./-]+:(?!latest)[\w.-]*\d[\w.-]*")


def found(value: Any, key: str) -> Iterator[Any]:
    """The values of a key anywhere in nested mappings and lists."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key:
                yield inner
            yield from found(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from found(inner, key)


def images() -> list[str]:
    compose = [i for path in INFRA.rglob("compose.yaml") for i in found(yaml.safe_load(path.read_text()), "image")]
    defaults = [template["variables"]["properties"]["image"]["default"] for template in TEMPLATES.values()]
    return [*compose, *map(tagged, found([document for _, document in MANIFESTS], "image")), *defaults]


def tagged(image: str) -> str:
    """An image of a manifest as the base's kustomization names it."""
    own = {one["name"]: f"{one['newName']}:{one['newTag']}" for one in KUSTOMIZATIONS[BASE]["images"]}
    return str(own.get(image, image))


def test_images_are_pinned_and_the_projects_own_has_its_version() -> None:
    assert VERSION is not None
    assert len(images()) > 10
    for image in images():
        assert PINNED.fullmatch(image), image
        assert not image.startswith("rewardsmith") or image.partition(":")[2] == VERSION[1]
        assert "minio" not in image, "withdrawn from its registries"


def test_the_dockerfile_copies_what_exists_and_ends_as_an_ordinary_user() -> None:
    text = (INFRA / "docker" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    steps = [shlex.split(line, comments=True) for line in text.splitlines()]
    steps = [words for words in steps if words]
    default = dict(words[1].split("=") for words in steps if words[0] == "ARG")
    for words in (words for words in steps if words[0] == "FROM"):
        assert PINNED.fullmatch(re.sub(r"\$\{(\w+)\}", lambda name: default[name[1]], words[1]))
    copied = [source for words in steps if words[0] == "COPY" for source in words[1:-1] if words[1][:2] != "--"]
    assert "constraints.txt" in copied
    for source in copied:
        assert (ROOT / source).exists(), source
    assert [words[1] for words in steps if words[0] == "USER"] == ["rewardsmith", "rewardsmith"]
    assert [words[-1] for words in steps if words[0] == "FROM"] == ["uv", *TARGETS]
    order = [" ".join(words) for words in steps]
    dependencies = next(at for at, line in enumerate(order) if "-r pyproject.toml" in line)
    assert dependencies < order.index("COPY rlhf_core rlhf_core"), "a changed line of code installs nothing again"
    stated = [word.partition("=")[0] for words in steps if words[0] in ("ENV", "ARG") for word in words[1:]]
    assert not [name for name in stated if SECRET.search(name)]


def test_a_stages_container_has_a_clone_of_its_own_with_the_runs_commit_remote_and_checkpoints(tmp_path: Path) -> None:
    first = small_repository.create(tmp_path / "first", demo=("bandit",), seeds=(0,))
    commit = command("git", "rev-parse", "HEAD", root=first).stdout.strip()
    command("git", "commit", "-q", "--allow-empty", "-m", "later", root=first)
    store = {"DVC_REMOTE": "s3://bucket/dvc", "MLFLOW_S3_ENDPOINT_URL": "http://objects:9000"}
    keys = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "secret"}
    shared = tmp_path / "shared"
    given = {"PATH": f"{INFRA / 'docker'}{os.pathsep}{clean_environment()['PATH']}", "REWARDSMITH_COMMIT": commit}
    given |= {"REWARDSMITH_SHARED": str(shared)}
    question = ["own-clone", "python", "-c", "import os, tasks; print(tasks.__file__, os.environ['HF_HOME'])"]
    for name, source, more in (("one", first, store | keys), ("two", tmp_path / "one", {})):
        clone = tmp_path / name
        clone.mkdir()
        for _ in range(2):  # again, as after a restart
            told = command(*question, root=clone, REWARDSMITH_REPOSITORY=str(source), **given, **more).stdout.split()
            assert told == [str(clone / "tasks" / "__init__.py"), str(shared / "huggingface")]
        assert command("git", "rev-parse", "HEAD", root=clone).stdout.strip() == commit
        listed = command("dvc", "remote", "list", root=clone).stdout.split()
        assert listed == ["store", "s3://bucket/dvc", "(default)"]
        assert (clone / ".dvc" / "config.local").stat().st_mode & 0o077 == 0
        assert not command("git", "status", "--porcelain", root=clone).stdout
        (clone / ".work" / "checkpoints" / name).touch()
    assert {path.name for path in (shared / "checkpoints").iterdir()} == {"one", "two"}


def environment_of(service: dict[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in (service.get("environment") or {}).items()}


def test_compose_services_refer_to_what_is_declared() -> None:
    services, volumes = COMPOSE["services"], set(COMPOSE["volumes"])
    assert {"database", "objects", "languagetool", "prefect", "mlflow", "worker"} <= set(services)
    for name, service in services.items():
        assert "build" not in service or service["build"]["target"] in TARGETS, name
        for other, how in service.get("depends_on", {}).items():
            healthy = how["condition"] != "service_healthy" or "healthcheck" in services[other]
            assert healthy, f"{name} waits for {other}, which never tells"
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert source in volumes or (INFRA / source).exists(), mount
        for host in re.findall(r"(?:://|@)([a-z]+):\d+", " ".join(environment_of(service).values())):
            assert host in services, f"{name} calls {host}"
    files = [yaml.safe_load(path.read_text()) for path in INFRA.rglob("compose.yaml")]
    assert all(port.startswith("127.0.0.1:") for ports in found(files, "ports") for port in ports)
    assert services["worker"]["environment"]["REWARDSMITH_SLOTS"], "its limits are those that the page makes"
    assert services["worker"]["command"][:5] == ["prefect", "worker", "start", "--pool", POOL]


def test_compose_takes_secrets_from_the_environment_alone() -> None:
    needed = set()
    for service in COMPOSE["services"].values():
        for name, value in environment_of(service).items():
            if SECRET.search(name) and name not in PUBLIC:
                assert re.search(r"\$\{\w+:\?", value), f"{name} is stated, or has a default"
            needed |= set(re.findall(r"\$\{(\w+):\?", value))
    for name in needed:
        assert f"{name}=" in PAGE, f"docs/containers.md does not say {name}"


def typed(document: dict[str, Any]) -> dict[str, Any]:
    """A manifest through the Kubernetes client's model of its kind, which drops what it does not know."""
    from kubernetes_asyncio import client

    translator = client.ApiClient.__new__(client.ApiClient)
    translator.configuration = client.Configuration()
    answer = SimpleNamespace(data=json.dumps(document))
    model = getattr(client, f"V1{document['kind']}")
    return translator.sanitize_for_serialization(translator.deserialize(answer, model))


@pytest.mark.parametrize(
    "document", [pytest.param(d, id=f"{name}-{d['kind']}-{d['metadata']['name']}") for name, d in MANIFESTS]
)
def test_manifests_hold_only_fields_that_kubernetes_knows(document: dict[str, Any]) -> None:
    assert typed(document) == document
    assert document["kind"] == "Namespace" or document["metadata"]["namespace"] == "rewardsmith"
    if document["kind"] == "Service":
        assert document["spec"]["type"] == "ClusterIP", "reachable from inside alone"
    for container in (c for containers in found(document, "containers") for c in containers):
        assert {"requests", "limits"} <= set(container["resources"]), container["name"]


def test_kubernetes_takes_secrets_from_secrets_that_the_page_makes() -> None:
    documents = [document for _, document in MANIFESTS]
    assert not [d for d in documents if d["kind"] == "Secret"], "a Secret in a file is a secret in git"
    made = {name: re.findall(r"--from-literal (\w+)=", text) for name, text in re.findall(
        r"create secret generic (rewardsmith-\w+)((?:.|\n)*?)\n(?:```|kubectl)", PAGE)}  # fmt: skip
    for key in found(documents, "secretKeyRef"):
        assert key["key"] in made[key["name"]]
    for reference in found(documents, "secretRef"):
        assert reference["name"] in made
    for variables in found(documents, "env"):
        for one in variables:
            public = one["name"] in PUBLIC or not SECRET.search(one["name"])
            assert public or "valueFrom" in one, f"{one['name']} is stated"


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_job_templates_are_work_pools_that_prefect_takes(name: str) -> None:
    from jsonschema import Draft202012Validator
    from prefect.client.schemas.actions import WorkPoolCreate

    template = TEMPLATES[name]
    assert WorkPoolCreate(name=POOL, type=name, base_job_template=template).base_job_template == template
    Draft202012Validator.check_schema(template["variables"])
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(template["job_configuration"])))
    assert used == set(template["variables"]["properties"]), "every variable has a place, and every place a variable"
    defaults = {k: v["default"] for k, v in template["variables"]["properties"].items() if "default" in v}
    Draft202012Validator(template["variables"]).validate(defaults)


def resolved(configuration: Any, name: str, **values: Any) -> Any:
    """Returns a run's configuration by the worker's own class; the templates name no blocks, so no server is asked."""
    from prefect.client.schemas.objects import FlowRun

    made = asyncio.run(configuration.from_template_and_values(TEMPLATES[name], values, client=SimpleNamespace()))
    made.prepare_for_flow_run(FlowRun(flow_id=uuid4(), name="calm-owl"))
    return made


def test_the_kubernetes_worker_makes_one_job_a_stage_with_its_gpus_cores_memory_and_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

    monkeypatch.setenv("REWARDSMITH_IMAGE", "registry.example.org/rewardsmith:0.1.0")
    for needs, gpus in (({"cores": 32, "gpus": 8, "memory_gb": 512}, "8"), ({"cores": 2, "memory_gb": 4}, "0")):
        variables = job_variables("kubernetes", needs, "c" * 40)
        made = resolved(KubernetesWorkerJobConfiguration, "kubernetes", **variables)
        manifest = json.loads(json.dumps(made.job_manifest))
        pod = manifest["spec"]["template"]["spec"]
        # Prefect's own check wants these two in the pod; Kubernetes reads them at the job.
        assert (pod.pop("completions"), pod.pop("parallelism")) == (1, 1)
        assert typed(manifest) == manifest
        (container,) = pod["containers"]
        cores, memory = str(needs["cores"]), f"{needs['memory_gb']}Gi"
        assert container["resources"]["limits"] == {"cpu": cores, "memory": memory, "nvidia.com/gpu": gpus}
        assert container["image"] == "registry.example.org/rewardsmith:0.1.0"
        assert {"name": "REWARDSMITH_COMMIT", "value": "c" * 40} in container["env"]
        assert container["command"] == ["own-clone"]
        assert container["args"], "the worker's command for a run"
        claims = {volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if len(volume) > 1
                  and "persistentVolumeClaim" in volume}  # fmt: skip
        assert claims == {"shared"}, "a stage has a clone of its own"
        assert made.namespace == "rewardsmith"


@pytest.mark.parametrize("gpus", [0, 1, 4])
def test_the_docker_worker_makes_one_container_a_stage_whose_gpus_the_machines_limits_choose(gpus: int) -> None:
    from docker.models.containers import _create_container_args
    from prefect_docker.worker import DockerWorker, DockerWorkerJobConfiguration

    variables = job_variables("docker", {"cores": 2, "gpus": gpus, "memory_gb": 24}, "c" * 40)
    made = resolved(DockerWorkerJobConfiguration, "docker", **variables)
    daemon = SimpleNamespace(version=lambda: {"Version": "28.0.0"})
    settings = DockerWorker._build_container_settings(DockerWorker.__new__(DockerWorker), daemon, made)
    arguments = _create_container_args({**settings, "version": "1.43"})
    host = arguments["host_config"]
    asked = [(one["Driver"], one["Count"], one["Capabilities"]) for one in host.get("DeviceRequests") or []]
    assert asked == ([("nvidia", -1, [["gpu"]])] if gpus else [])
    assert (host["NanoCpus"], host["Memory"], host["ShmSize"]) == (2 * 10**9, 24 * 2**30, 16 * 2**30)
    assert host["Binds"] == ["rewardsmith_tree:/repository:ro", "rewardsmith_shared:/shared"]
    assert arguments["entrypoint"] == ["own-clone"]
    environment = settings["environment"]
    assert environment["REWARDSMITH_COMMIT"] == "c" * 40
    assert environment["REWARDSMITH_SLOTS"] == COMPOSE["services"]["worker"]["environment"]["REWARDSMITH_SLOTS"]
    assert COMPOSE["name"] == "rewardsmith", "the prefix of the network and volumes that the template names"
    volumes = {bind.partition(":")[0].removeprefix("rewardsmith_") for bind in host["Binds"]}
    assert volumes <= set(COMPOSE["volumes"])
