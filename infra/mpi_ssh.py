"""The keys of runs whose users may not create Secrets, as a Kubernetes Secret: for SSH, and for TLS between agents."""

import pulumi
from pulumi_kubernetes import core, meta
from pulumi_tls import PrivateKey, SelfSignedCert, SelfSignedCertSubjectArgs

from infra import names
from infra.kubernetes_component import KubernetesComponent

_YEARS = 100  # agents do not look at dates, and nothing renews it


class MpiSsh(KubernetesComponent):
    """The Secret `mpi-ssh`, encrypted in the state.

    It has an ED25519 key pair (`id`, `id.pub`, `authorized_keys`), and a key (`key.pem`) with a certificate that is its
    own authority (`cert.pem`, `ca.pem`).
    """

    def __init__(self, name: str, namespace: pulumi.Input[str], opts: pulumi.ResourceOptions):
        super().__init__("MpiSsh", name, opts)
        key = PrivateKey(name, algorithm="ED25519", opts=self._private())
        tls_key = PrivateKey(f"{name}-tls", algorithm="ECDSA", ecdsa_curve="P256", opts=self._private())
        private: pulumi.Output[str] = pulumi.Output[str].secret(key.private_key_openssh)
        tls_pem: pulumi.Output[str] = pulumi.Output[str].secret(tls_key.private_key_pem)
        tls_private: pulumi.Output[str] = pulumi.Output[str].secret(tls_key.private_key_pem_pkcs8)
        certificate = SelfSignedCert(
            f"{name}-tls",
            private_key_pem=tls_pem,
            subject=SelfSignedCertSubjectArgs(common_name=name),
            is_ca_certificate=True,
            allowed_uses=["digital_signature", "cert_signing"],
            validity_period_hours=_YEARS * 365 * 24,
            opts=pulumi.ResourceOptions(parent=self),
        )
        core.v1.Secret(
            name,
            metadata=meta.v1.ObjectMetaArgs(name=names.SSH_SECRET, namespace=namespace),
            type="Opaque",
            string_data={
                "id": private,
                "id.pub": key.public_key_openssh,
                "authorized_keys": key.public_key_openssh,
                "ca.pem": certificate.cert_pem,
                "cert.pem": certificate.cert_pem,
                "key.pem": tls_private,
            },
            opts=self.child(),
        )
        self.register_outputs({})

    def _private(self) -> pulumi.ResourceOptions:
        """The options of a key whose private part is encrypted in the state."""
        private = ["privateKeyOpenssh", "privateKeyPem", "privateKeyPemPkcs8"]
        return pulumi.ResourceOptions(parent=self, additional_secret_outputs=private)
