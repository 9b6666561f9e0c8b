"""infra/: what can be known of containers, manifests and job templates without running them.

Compose and Dockerfile: structure. Kubernetes: the client's own models take every field. Job templates: the workers' own
classes resolve them into what they would send.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import yaml

from flows.deployments import POOL

ROOT = Path(__file__).resolve().parent.parent
INFRA = ROOT / "infra"
COMPOSE = yaml.safe_load((INFRA / "compose.yaml").read_text(encoding="utf-8"))
MANIFESTS = [
    (path.name, document)
    for path in sorted((INFRA / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
TEMPLATES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (INFRA / "prefect").glob("*.json")}
PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
SECRET = re.compile(r"PASSWORD|SECRET|_KEY|AUTH|DATABASE|_USER$")
#: Of what looks like one, the names that hold none.
PUBLIC = {"POSTGRES_USER", "PREFECT_INTEGRATIONS_KUBERNETES_WORKER_API_AUTH_STRING_SECRET_NAME"}
PUBLIC |= {"PREFECT_INTEGRATIONS_KUBERNETES_WORKER_API_AUTH_STRING_SECRET_KEY"}
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
    return [*compose, *found([document for _, document in MANIFESTS], "image"), *defaults]


def test_images_are_pinned_and_the_projects_own_has_its_version() -> None:
    assert VERSION is not None
    assert len(images()) > 10
    for image in images():
        assert PINNED.fullmatch(image), image
        assert not image.startswith("rewardsmith:") or image == f"rewardsmith:{VERSION[1]}"


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
    assert [words[1] for words in steps if words[0] == "USER"] == ["rewardsmith"]
    stated = [word.partition("=")[0] for words in steps if words[0] in ("ENV", "ARG") for word in words[1:]]
    assert not [name for name in stated if SECRET.search(name)]


@pytest.mark.parametrize("name", ["mlflow-server", "prepare-tree", "create-databases.sh"])
def test_scripts_are_valid_shell_and_executable(name: str) -> None:
    path = INFRA / "docker" / name
    assert path.stat().st_mode & 0o111
    subprocess.run(["sh", "-n", str(path)], check=True)


def test_the_mlflow_script_uses_options_that_exist() -> None:
    from mlflow.cli import server
    from mlflow.server.auth.db.cli import commands

    text = (INFRA / "docker" / "mlflow-server").read_text(encoding="utf-8")
    known = {option for parameter in server.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", text.partition("exec mlflow server")[2])) <= known
    assert {option for parameter in commands.commands["upgrade"].params for option in parameter.opts} >= {"--url"}


def environment_of(service: dict[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in (service.get("environment") or {}).items()}


def test_compose_services_refer_to_what_is_declared() -> None:
    assert set(COMPOSE) <= {"name", "services", "volumes", "x-image", "x-client"}
    services, volumes = COMPOSE["services"], set(COMPOSE["volumes"])
    assert {"database", "objects", "languagetool", "prefect", "mlflow", "worker"} <= set(services)
    for name, service in services.items():
        assert ("image" in service) != ("extends" in service), name
        for other, how in service.get("depends_on", {}).items():
            healthy = how["condition"] != "service_healthy" or "healthcheck" in services[other]
            assert healthy, f"{name} waits for {other}, which never tells"
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert source in volumes or (INFRA / source).exists(), mount
        for host in re.findall(r"(?:://|@)([a-z]+):\d+", " ".join(environment_of(service).values())):
            assert host in services, f"{name} calls {host}"
    extended = services["languagetool"]["extends"]
    assert extended["service"] in yaml.safe_load((INFRA / extended["file"]).read_text())["services"]
    assert services["worker"]["command"][:5] == ["prefect", "worker", "start", "--pool", POOL]
    (device,) = services["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_the_worker_of_compose_shares_slots_whose_limits_a_documented_command_makes() -> None:
    assert COMPOSE["services"]["worker"]["environment"]["REWARDSMITH_SLOTS"]
    command = "docker compose -f infra/compose.yaml run --rm worker python -m flows.shared_slots"
    assert command in (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")


def test_compose_publishes_ports_on_the_loopback_address_alone() -> None:
    for path in INFRA.rglob("compose.yaml"):
        for ports in found(yaml.safe_load(path.read_text()), "ports"):
            assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_takes_secrets_from_the_environment_alone() -> None:
    needed = set()
    for service in COMPOSE["services"].values():
        for name, value in environment_of(service).items():
            if SECRET.search(name) and name not in PUBLIC:
                assert re.search(r"\$\{\w+:\?", value), f"{name} is stated, or has a default"
            needed |= set(re.findall(r"\$\{(\w+):\?", value))
    for name in needed:
        assert f"{name}=" in PAGE, f"docs/cluster.md does not say {name}"


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


def test_an_unknown_field_of_a_manifest_is_noticed() -> None:
    document = next(d for _, d in MANIFESTS if d["kind"] == "Deployment")
    wrong = json.loads(json.dumps(document))
    wrong["spec"]["template"]["spec"]["contaners"] = []
    assert typed(wrong) != wrong
    del wrong["spec"]["selector"]
    with pytest.raises(ValueError, match="selector"):
        typed(wrong)


def test_manifests_refer_to_what_is_declared() -> None:
    documents = [document for _, document in MANIFESTS]
    named = {(d["kind"], d["metadata"]["name"]) for d in documents}
    jobs = [TEMPLATES["kubernetes"]["job_configuration"]["job_manifest"]]
    for claim in found([*documents, *jobs], "claimName"):
        assert ("PersistentVolumeClaim", claim) in named
    for reference in found([*documents, *jobs], "configMapRef"):
        assert ("ConfigMap", reference["name"]) in named
    for account in found(documents, "serviceAccountName"):
        assert ("ServiceAccount", account) in named
    for service in (d for d in documents if d["kind"] == "Service"):
        pods = [d["spec"]["template"]["metadata"]["labels"] for d in documents if "selector" in d.get("spec", {})
                and d["kind"] != "Service"]  # fmt: skip
        assert service["spec"]["selector"] in pods


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
    """What a worker makes of a run by its own class; the templates name no blocks, so no server is asked."""
    from prefect.client.schemas.objects import FlowRun

    made = asyncio.run(configuration.from_template_and_values(TEMPLATES[name], values, client=SimpleNamespace()))
    made.prepare_for_flow_run(FlowRun(flow_id=uuid4(), name="calm-owl"))
    return made


def test_the_kubernetes_worker_makes_jobs_that_request_gpus() -> None:
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

    made = resolved(KubernetesWorkerJobConfiguration, "kubernetes", gpus="8", env={"REWARDSMITH_THREADS": "1"})
    manifest = json.loads(json.dumps(made.job_manifest))
    pod = manifest["spec"]["template"]["spec"]
    # Prefect's own check wants these two in the pod; Kubernetes reads them at the job.
    assert (pod.pop("completions"), pod.pop("parallelism")) == (1, 1)
    assert typed(manifest) == manifest
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert {"name": "REWARDSMITH_THREADS", "value": "1"} in container["env"]
    assert container["args"], "the worker's command for a run"
    assert made.namespace == "rewardsmith"


@pytest.mark.parametrize("gpus", [1, 4, -1])
def test_the_docker_worker_makes_containers_with_gpus(gpus: int) -> None:
    from docker.models.containers import _create_container_args
    from prefect_docker.worker import DockerWorker, DockerWorkerJobConfiguration

    made = resolved(DockerWorkerJobConfiguration, "docker", gpus=gpus)
    daemon = SimpleNamespace(version=lambda: {"Version": "28.0.0"})
    settings = DockerWorker._build_container_settings(DockerWorker.__new__(DockerWorker), daemon, made)
    arguments = _create_container_args({**settings, "version": "1.43"})
    (request,) = arguments["host_config"]["DeviceRequests"]
    assert (request["Driver"], request["Count"], request["Capabilities"]) == ("nvidia", gpus, [["gpu"]])
    assert arguments["host_config"]["Binds"] == ["rewardsmith_tree:/workspace"]
    assert arguments["host_config"]["ShmSize"] == 16 * 2**30
    assert COMPOSE["name"] == "rewardsmith", "the prefix of the network and volume that the template names"
