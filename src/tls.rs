//! Certificates out of PEM: the broker's own, read at boot and again at SIGHUP, and those it trusts.
//!
//! Source: operations 2.7 (the optional TLS listener), 1.3 (PG_SSL_ROOT_CERT).

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Where certificate and key are, and what new connections are served with.
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    config: Mutex<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads both files. `Err`: the reason, naming the setting.
    pub fn load(cert: &Path, key: &Path) -> Result<Tls, String> {
        let config = Mutex::new(read(cert, key)?);
        Ok(Tls { cert: cert.into(), key: key.into(), config })
    }

    /// Reads both files again; when they cannot be used, what was served before is served further.
    pub fn reload(&self) -> Result<(), String> {
        let config = read(&self.cert, &self.key)?;
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// For the next connection.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn read(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, String> {
    let cannot = |what: &str, path: &Path, why: &dyn std::fmt::Display| format!("{what} {}: {why}", path.display());
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect);
    let chain = chain.map_err(|why| cannot("QUEEN_TLS_CERT", cert, &why))?;
    if chain.is_empty() {
        return Err(cannot("QUEEN_TLS_CERT", cert, &"no certificate in it"));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|why| cannot("QUEEN_TLS_KEY", key, &why))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|why| why.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|why| cannot("QUEEN_TLS_CERT and QUEEN_TLS_KEY do not fit:", cert, &why))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The certificates of a PEM text; line breaks may be written `\n`.
pub fn roots(pem: &str) -> Result<RootCertStore, String> {
    let pem = pem.replace("\\n", "\n");
    let mut store = RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let cert = cert.map_err(|why| why.to_string())?;
        store.add(cert).map_err(|why| why.to_string())?;
    }
    if store.is_empty() { Err("no certificate in it".into()) } else { Ok(store) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_is_pem_with_real_or_written_line_breaks() {
        let pem = include_str!("../tests/keys/ca.pem");
        assert_eq!(roots(pem).unwrap().len(), 1);
        assert_eq!(roots(&pem.replace('\n', "\\n")).unwrap().len(), 1);
        assert_eq!(roots(&pem.repeat(2)).unwrap().len(), 2);
        let cut = &pem[..pem.len() / 2];
        for bad in ["", "nonsense", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", cut] {
            assert!(roots(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_certificate_needs_its_key() {
        let at = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keys").join(name);
        assert!(Tls::load(&at("server.pem"), &at("server.key")).is_ok());
        for (cert, key, why) in [
            ("none.pem", "server.key", "QUEEN_TLS_CERT"),
            ("server.pem", "none.key", "QUEEN_TLS_KEY"),
            ("server.key", "server.key", "no certificate in it"),
            ("server.pem", "server.pem", "QUEEN_TLS_KEY"),
            ("server.pem", "server2.key", "do not fit"),
        ] {
            let error = Tls::load(&at(cert), &at(key)).err().unwrap_or_default();
            assert!(error.contains(why), "{cert} {key}: {error}");
        }
    }
}
