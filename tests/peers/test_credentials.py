"""Tests of the certificates and tokens for test servers: run with `python3 -m unittest discover tests/peers`."""

import base64
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from credentials import Credentials  # noqa: E402


@unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
class CredentialsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Once: keys take their time.
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.credentials = Credentials(temporary.name)

    def verify(self, authority, certificate):
        command = ["openssl", "verify", "-CAfile", f"{authority}.pem", f"{certificate}.pem"]
        return subprocess.run(command, cwd=self.credentials.path, capture_output=True, check=False).returncode == 0

    def test_certificates_are_of_the_one_authority(self):
        for name in ("server", "stranger", "client", "client-ec"):
            self.assertTrue(self.verify("ca", name))
            self.assertFalse(self.verify("other-ca", name))

    def test_a_second_use_of_the_folder_changes_nothing(self):
        before = (self.credentials.path / "server.pem").read_bytes()
        Credentials(self.credentials.path)
        self.assertEqual(before, (self.credentials.path / "server.pem").read_bytes())

    def test_a_token_names_its_role_and_its_end(self):
        head, body, _ = self.credentials.token("somebody", 60).split(".")
        claims = json.loads(base64.urlsafe_b64decode(body + "=="))
        self.assertEqual(json.loads(base64.urlsafe_b64decode(head + "=="))["alg"], "HS256")
        self.assertEqual(claims["sub"], "somebody")
        self.assertAlmostEqual(claims["exp"], time.time() + 60, delta=5)


if __name__ == "__main__":
    unittest.main()
