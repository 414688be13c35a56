"""The environment's SSH key pair for MPI, as a Kubernetes Secret."""

import pulumi
from pulumi_kubernetes import core, meta
from pulumi_tls import PrivateKey

from infra import names
from infra.kubernetes_component import KubernetesComponent


class MpiSsh(KubernetesComponent):
    """An ED25519 key pair in the Secret `mpi-ssh` (`id`, `id.pub`, `authorized_keys`), encrypted in the state."""

    def __init__(self, name: str, namespace: pulumi.Input[str], opts: pulumi.ResourceOptions):
        super().__init__("MpiSsh", name, opts)
        key = PrivateKey(
            name,
            algorithm="ED25519",
            opts=pulumi.ResourceOptions(
                parent=self, additional_secret_outputs=["privateKeyOpenssh", "privateKeyPem", "privateKeyPemPkcs8"]
            ),
        )
        private: pulumi.Output[str] = pulumi.Output[str].secret(key.private_key_openssh)
        core.v1.Secret(
            name,
            metadata=meta.v1.ObjectMetaArgs(name=names.SSH_SECRET, namespace=namespace),
            type="Opaque",
            string_data={
                "id": private,
                "id.pub": key.public_key_openssh,
                "authorized_keys": key.public_key_openssh,
            },
            opts=self.child(),
        )
        self.register_outputs({})
