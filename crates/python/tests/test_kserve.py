"""The manifest for KServe against what its definition of a ServingRuntime says (serving.kserve.io/v1alpha1)."""

from pathlib import Path

import yaml

MANIFEST = Path(__file__).resolve().parents[1] / "deploy" / "kserve-serving-runtime.yaml"

# Fields that the definition has, with their kinds. A field that is not here is refused by the cluster.
SPEC = {
    "affinity": dict,
    "annotations": dict,
    "builtInAdapter": dict,
    "containers": list,
    "disabled": bool,
    "grpcDataEndpoint": str,
    "grpcEndpoint": str,
    "hostIPC": bool,
    "httpDataEndpoint": str,
    "imagePullSecrets": list,
    "labels": dict,
    "multiModel": bool,
    "nodeSelector": dict,
    "protocolVersions": list,
    "replicas": int,
    "schedulerName": str,
    "storageHelper": dict,
    "supportedModelFormats": list,
    "tolerations": list,
    "volumes": list,
    "workerSpec": dict,
}
FORMAT = {"name": str, "version": str, "autoSelect": bool, "priority": int}
CONTAINER = {
    "args": list,
    "command": list,
    "env": list,
    "image": str,
    "imagePullPolicy": str,
    "livenessProbe": dict,
    "name": str,
    "ports": list,
    "readinessProbe": dict,
    "resources": dict,
    "securityContext": dict,
    "startupProbe": dict,
    "volumeMounts": list,
    "workingDir": str,
}
PORT = {"name": str, "containerPort": int, "hostPort": int, "protocol": str}
PROBE = {
    "httpGet": dict,
    "initialDelaySeconds": int,
    "periodSeconds": int,
    "timeoutSeconds": int,
    "failureThreshold": int,
    "successThreshold": int,
}


def faults(place, value, fields):
    """Fields of a mapping that the definition does not have, or has as another kind."""
    for name, held in value.items():
        if name not in fields:
            yield f"{place}.{name} is no field"
        elif type(held) is not fields[name]:
            yield f"{place}.{name} is a {type(held).__name__}, not a {fields[name].__name__}"


def test_the_manifest_is_what_the_definition_asks_for():
    manifest = yaml.safe_load(MANIFEST.read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("serving.kserve.io/v1alpha1", "ServingRuntime")
    spec = manifest["spec"]
    found = list(faults("spec", spec, SPEC))
    for position, format in enumerate(spec["supportedModelFormats"]):
        found += faults(f"supportedModelFormats[{position}]", format, FORMAT)
        assert "name" in format
    for container in spec["containers"]:
        found += faults(container["name"], container, CONTAINER)
        for port in container["ports"]:
            found += faults(f"{container['name']}.ports", port, PORT)
        for probe in ["livenessProbe", "readinessProbe", "startupProbe"]:
            found += faults(probe, container[probe], PROBE)
    assert found == []


def test_the_manifest_says_what_a_fleet_relies_on():
    spec = yaml.safe_load(MANIFEST.read_text())["spec"]
    (container,) = spec["containers"]
    assert container["name"] == "kserve-container"
    assert spec["protocolVersions"] == ["v2", "grpc-v2"]
    assert [format["name"] for format in spec["supportedModelFormats"]] == ["onnx", "precast"]
    assert container["args"][:3] == ["serve", "--model-repo", "/mnt/models"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    readiness = container["readinessProbe"]
    assert readiness["httpGet"]["path"] == "/v2/health/ready" and "initialDelaySeconds" not in readiness
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] and security["runAsNonRoot"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    # Ports are named so that Knative knows the protocol of each.
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"http1": 8080, "h2c": 9000}
