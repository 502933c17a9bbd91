"""Certificates, keys, tokens and passwords for servers and clients of tests, and the settings that make Pulsar want them.

All of it is made in one folder with `openssl` and is good for nothing but tests:

    ca.pem, other-ca.pem           an authority that the servers' and clients' certificates are of; one that nobody is of
    server.pem, server.key         for localhost and 127.0.0.1 (key in PKCS#8, as Java wants it)
    stranger.pem, stranger.key     of the same authority, for the host `elsewhere.example` only
    client.pem, client.key         a client certificate of the role `client` (PKCS#8); also client.pkcs1.key
    client-ec.pem, client-ec.key   the same role with an elliptic key, in SEC1
    token.secret                   the key that tokens are signed with (HS256)
    admin.token, proxy.token, client.token, expired.token
    htpasswd                       user `client` with the password `secret`
"""

import base64
import hashlib
import hmac
import json
import pathlib
import secrets
import subprocess
import time

PROVIDERS = ",".join(f"org.apache.pulsar.broker.authentication.AuthenticationProvider{kind}"
                     for kind in ("Token", "Tls", "Basic"))
TOKEN_PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
PASSWORD = "secret"


class Credentials:
    """The files of one folder; makes those that are missing."""

    def __init__(self, folder):
        self.path = pathlib.Path(folder).resolve()
        if not (self.path / "htpasswd").exists():
            self.path.mkdir(parents=True, exist_ok=True)
            self._create()

    def token(self, role, expires_in=None):
        """A token of this role; `expires_in` seconds from now, negative for one that has expired."""
        claims = {"sub": role} | ({} if expires_in is None else {"exp": int(time.time() + expires_in)})
        head = base64url(json.dumps({"alg": "HS256"}).encode())
        body = base64url(json.dumps(claims).encode())
        key = (self.path / "token.secret").read_bytes()
        return f"{head}.{body}.{base64url(hmac.new(key, f'{head}.{body}'.encode(), hashlib.sha256).digest())}"

    def server_settings(self):
        """What a broker and a proxy have in common: a certificate, and three methods of authentication."""
        return {
            "tlsCertificateFilePath": self.path / "server.pem",
            "tlsKeyFilePath": self.path / "server.key",
            "tlsTrustCertsFilePath": self.path / "ca.pem",
            "authenticationEnabled": "true",
            "authenticationProviders": PROVIDERS,
            "tokenSecretKey": (self.path / "token.secret").as_uri(),
            "basicAuthConf": (self.path / "htpasswd").as_uri(),
            "superUserRoles": "admin,proxy",
            "brokerClientTrustCertsFilePath": self.path / "ca.pem",
        }

    def broker_settings(self, tls_port, web_tls_port):
        """A broker that also listens with TLS, asks everybody for a credential, and looks at expiry every second."""
        return self.server_settings() | {
            "brokerServicePortTls": tls_port,
            "webServicePortTls": web_tls_port,
            "brokerClientAuthenticationPlugin": TOKEN_PLUGIN,
            "brokerClientAuthenticationParameters": f"token:{self.token('admin')}",
            "proxyRoles": "proxy",
            "authenticateOriginalAuthData": "true",
            "authenticationRefreshCheckSeconds": 1,
        }

    def proxy_settings(self, tls_port, of):
        """A proxy with TLS on both sides that passes its clients' credentials on. `of`: the URLs of its broker."""
        return self.server_settings() | {
            "servicePortTls": tls_port,
            "brokerServiceURLTLS": of["tls_service_url"],
            "brokerWebServiceURLTLS": of["tls_admin_url"],
            "tlsEnabledWithBroker": "true",
            "brokerClientAuthenticationPlugin": TOKEN_PLUGIN,
            "brokerClientAuthenticationParameters": f"token:{self.token('proxy')}",
            "forwardAuthorizationCredentials": "true",
            "authenticationRefreshCheckSeconds": 1,
        }

    def _create(self):
        for name in ("ca", "other-ca"):
            self._openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", 30, "-subj", f"/CN={name}",
                          "-keyout", f"{name}.key", "-out", f"{name}.pem")
        self._certificate("server", "rsa:2048", "DNS:localhost,IP:127.0.0.1")
        self._certificate("stranger", "rsa:2048", "DNS:elsewhere.example")
        self._certificate("client", "rsa:2048", "DNS:client")
        self._openssl("rsa", "-in", "client.key", "-traditional", "-out", "client.pkcs1.key")
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "client-ec.key")
        self._sign("client-ec", "client", "DNS:client", ["-key", "client-ec.key"])
        (self.path / "token.secret").write_bytes(secrets.token_bytes(32))
        for role in ("admin", "proxy", "client"):
            (self.path / f"{role}.token").write_text(self.token(role))
        (self.path / "expired.token").write_text(self.token("client", -60))
        hashed = self._openssl("passwd", "-apr1", PASSWORD)
        (self.path / "htpasswd").write_text(f"client:{hashed}\n")

    def _certificate(self, name, algorithm, alternative_names):
        self._sign(name, name, alternative_names, ["-newkey", algorithm, "-nodes", "-keyout", f"{name}.key"])

    def _sign(self, name, common_name, alternative_names, key):
        extensions = self.path / "extensions"
        extensions.write_text(f"subjectAltName={alternative_names}\nbasicConstraints=CA:FALSE\n")
        self._openssl("req", "-new", *key, "-subj", f"/CN={common_name}", "-out", "request")
        self._openssl("x509", "-req", "-in", "request", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", 30,
                      "-extfile", extensions, "-out", f"{name}.pem")

    def _openssl(self, *arguments):
        done = subprocess.run(["openssl", *map(str, arguments)], cwd=self.path, stdin=subprocess.DEVNULL, check=False,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"openssl {arguments[0]}: {done.stderr[-500:]}")
        return done.stdout.strip()


def base64url(data):
    """Base64 as in tokens: the URL's alphabet without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
