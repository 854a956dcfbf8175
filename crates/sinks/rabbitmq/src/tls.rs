//! TLS: trusted authorities, and the client certificate.
//!
//! There is no way to switch verification off. A private key never leaves this file but into a handshake.

use std::io;
use std::sync::Arc;

use lapin::tcp::{RustlsConnector, RustlsConnectorConfig};
use posthaste_core::Result;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::server::refused;

#[derive(Clone, Default)]
pub(crate) struct Tls {
    /// Whom to trust; none: whom the system trusts.
    roots: Option<Vec<CertificateDer<'static>>>,
    identity: Option<Arc<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>>,
}

impl Tls {
    pub(crate) fn set_roots(&mut self, pem: &[u8]) -> Result<()> {
        self.roots = Some(certificates("the authorities", pem)?);
        Ok(())
    }

    pub(crate) fn set_identity(&mut self, chain: &[u8], key: &[u8]) -> Result<()> {
        let chain = certificates("the client certificate", chain)?;
        // Without the source: its text might quote the key.
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
            refused("the client certificate's key is not a private key in PEM", "give an unencrypted one")
        })?;
        self.identity = Some(Arc::new((chain, key)));
        Ok(())
    }

    /// What makes the handshake. It reads the system's certificates, so it takes a moment.
    pub(crate) fn connector(&self) -> io::Result<RustlsConnector> {
        let config = match &self.roots {
            Some(roots) => RustlsConnectorConfig::default().with_parsable_certificates(roots.clone()),
            None => RustlsConnectorConfig::new_with_native_certs()?,
        };
        match self.identity.as_deref() {
            None => config.connector_with_no_client_auth(),
            Some((chain, key)) => config.connector_with_single_cert(chain.clone(), key.clone_key()),
        }
    }
}

fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| refused(format!("{what}: not PEM"), "give certificates in PEM"))?;
    if found.is_empty() {
        return Err(refused(format!("{what}: no certificate in the PEM"), "give at least one"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_certificate_is_refused() {
        let mut tls = Tls::default();
        assert!(tls.set_roots(b"hello").is_err());
        assert!(tls.set_identity(b"", b"hello").is_err());
    }
}
