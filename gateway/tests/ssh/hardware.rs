//! Keys in hardware. OpenSSH's client needs a real token, so here the client
//! is russh and the token is a few lines.

use crate::support::Service;
use russh::{
    AgentAuthError, Signer,
    client::{self, AuthResult},
    keys::{
        HashAlg, PrivateKey, PublicKey, PublicKeyOrCertificate,
        agent::AgentIdentity,
        signature::Signer as _,
        ssh_encoding::Encode,
        ssh_key::{
            private::{Ed25519Keypair, KeypairData},
            public::{KeyData, SkEd25519},
            sha2::{Digest, Sha256},
        },
    },
};
use std::sync::Arc;

const APPLICATION: &str = "ssh:";

/// Signs as a token does: over a digest, with a flag for the touch and a counter.
struct Token {
    key: PrivateKey,
    honest: bool,
}

impl Token {
    fn public(&self) -> PublicKey {
        let KeypairData::Ed25519(pair) = self.key.key_data() else { panic!("not ed25519") };
        PublicKey::new(KeyData::SkEd25519(SkEd25519::new(pair.public, APPLICATION)), "token")
    }
}

impl Signer for Token {
    type Error = AgentAuthError;

    async fn auth_sign(
        &mut self,
        _key: &AgentIdentity,
        _hash: Option<HashAlg>,
        to_sign: Vec<u8>,
    ) -> Result<Vec<u8>, AgentAuthError> {
        let trailer = [1, 0, 0, 0, 7];
        let mut signed = Sha256::digest(APPLICATION).to_vec();
        signed.extend(trailer);
        signed.extend(Sha256::digest(if self.honest { &to_sign } else { &to_sign[1..] }));
        let signature = self.key.try_sign(&signed).unwrap();
        let mut blob = Vec::new();
        "sk-ssh-ed25519@openssh.com".encode(&mut blob).unwrap();
        signature.as_bytes().encode(&mut blob).unwrap();
        blob.extend(trailer);
        let mut data = to_sign;
        blob.encode(&mut data).unwrap();
        Ok(data)
    }
}

struct AnyHost;

impl client::Handler for AnyHost {
    type Error = russh::Error;

    async fn check_server_key(&mut self, _key: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        Ok(true)
    }
}

#[test]
fn a_token_logs_in_and_a_forged_signature_does_not() {
    let service = Service::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for honest in [true, false] {
            let pair = Ed25519Keypair::from_seed(&[7; 32]);
            let mut token = Token { key: PrivateKey::from(pair), honest };
            let address = ("127.0.0.1", service.port);
            let mut session = client::connect(Arc::default(), address, AnyHost).await.unwrap();
            let public = token.public();
            let result = session.authenticate_publickey_with("me", public, None, &mut token).await.unwrap();
            assert_eq!(matches!(result, AuthResult::Success), honest);
        }
    });
}
