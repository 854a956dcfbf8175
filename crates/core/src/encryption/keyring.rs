//! Keys in memory, and XChaCha20-Poly1305 with them.
//!
//! Its nonces have 24 random bytes, so that any number of processes can encrypt under one key without ever asking each other.
//! A key is never shown, logged or compared.

use std::collections::BTreeMap;
use std::fmt;

use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

use super::{CannotOpen, Cipher, Sealed};
use crate::error::{Error, ErrorKind, Result};

const NONCE_BYTES: usize = 24;
const MAX_ID_BYTES: usize = 100;

/// A secret key of 32 bytes. `Debug` does not show it.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// The key with these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A new one, from the operating system's generator.
    pub fn generate() -> Result<Self> {
        let mut bytes = [0; 32];
        random(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The key that these 64 hexadecimal digits say, as `openssl rand -hex 32` makes them.
    pub fn from_hex(digits: &str) -> Result<Self> {
        let refuse = || {
            Error::new(ErrorKind::Configuration, "a key is not 64 hexadecimal digits")
                .with_remedy("make one by `openssl rand -hex 32`")
        };
        let digits = digits.trim().as_bytes();
        let mut bytes = [0; 32];
        if digits.len() != 64 {
            return Err(refuse());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            let (high, low) = (digit(pair[0]).ok_or_else(refuse)?, digit(pair[1]).ok_or_else(refuse)?);
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Keys by their ids: one for new messages, and older ones that can still be read.
///
/// To change the key: give every process the new one as an old one; then, everywhere, as the one for new messages; and take the
/// former one away when no message is left that has it in its `posthaste-encryption` header.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
/// use posthaste_core::{Key, Keyring, MemoryStore, Outbox};
///
/// let keys = Keyring::new("2026-11", Key::generate()?)?.and_old("2026-05", Key::generate()?)?;
/// let outbox = Outbox::builder(MemoryStore::new()).encryption(keys).build().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Keyring {
    current: String,
    keys: BTreeMap<String, XChaCha20Poly1305>,
    accepts_plaintext: bool,
}

impl Keyring {
    /// This key, for new messages. Its id is stored with each of them: 1 to 100 letters, digits and `.-_`.
    pub fn new(id: impl Into<String>, key: Key) -> Result<Self> {
        let current = id.into();
        let keyring = Self { current: current.clone(), keys: BTreeMap::new(), accepts_plaintext: true };
        keyring.and_old(current, key)
    }

    /// And an older one, for messages that are there.
    #[allow(clippy::needless_pass_by_value, reason = "a key is given away")]
    pub fn and_old(mut self, id: impl Into<String>, key: Key) -> Result<Self> {
        let id = id.into();
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if id.is_empty() || id.len() > MAX_ID_BYTES || !id.chars().all(fits) {
            return Err(Error::new(ErrorKind::Configuration, "the id of a key is not acceptable")
                .with_remedy("give it 1 to 100 letters, digits and .-_"));
        }
        let cipher = XChaCha20Poly1305::new(&key.0.into());
        if self.keys.insert(id.clone(), cipher).is_some() {
            return Err(Error::new(ErrorKind::Configuration, "two keys have one id")
                .with_context("id", id)
                .with_remedy("give each its own: messages are decrypted by it"));
        }
        Ok(self)
    }

    /// From a text, say of the environment: `id:key`, more of them after commas, the one for new messages first; keys in
    /// hexadecimal digits.
    ///
    /// ```
    /// # use posthaste_core::Keyring;
    /// let (new, old) = ("11".repeat(32), "22".repeat(32));
    /// assert!(Keyring::parse(&format!("2026-11:{new},2026-05:{old}")).is_ok());
    /// ```
    pub fn parse(text: &str) -> Result<Self> {
        let mut keyring: Option<Self> = None;
        for part in text.split(',') {
            let Some((id, key)) = part.trim().split_once(':') else {
                // Without the text: it may be a key.
                return Err(Error::new(ErrorKind::Configuration, "a key has no id").with_remedy(
                    "give keys as id:key, separated by commas, the one for new messages first",
                ));
            };
            let key = Key::from_hex(key)?;
            keyring = Some(match keyring {
                None => Self::new(id, key)?,
                Some(keyring) => keyring.and_old(id, key)?,
            });
        }
        keyring.ok_or_else(|| Error::new(ErrorKind::Configuration, "no key is given"))
    }

    /// Messages that are not encrypted are not delivered: they are dead, with the reason. Turn this on once every publisher
    /// encrypts and earlier messages are gone.
    #[must_use]
    pub fn refuse_plaintext(mut self) -> Self {
        self.accepts_plaintext = false;
        self
    }
}

/// Shows ids, and no key.
impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<&str> = self.keys.keys().map(String::as_str).collect();
        f.debug_struct("Keyring").field("current", &self.current).field("ids", &ids).finish_non_exhaustive()
    }
}

impl Cipher for Keyring {
    fn seal(&self, plain: &[u8], bound: &[u8]) -> Result<Sealed> {
        let mut bytes = vec![0; NONCE_BYTES];
        random(&mut bytes)?;
        let broken = || Error::new(ErrorKind::Codec, "the message cannot be encrypted");
        let key = self.keys.get(&self.current).ok_or_else(broken)?;
        let nonce = XNonce::try_from(&bytes[..]).map_err(|_| broken())?;
        let sealed = key.encrypt(&nonce, Payload { msg: plain, aad: bound }).map_err(|_| broken())?;
        bytes.extend(sealed);
        Ok(Sealed { key_id: self.current.clone(), bytes })
    }

    fn open(&self, key_id: &str, sealed: &[u8], bound: &[u8]) -> Result<Vec<u8>, CannotOpen> {
        let key = self.keys.get(key_id).ok_or(CannotOpen::UnknownKey)?;
        let (nonce, sealed) = sealed.split_at_checked(NONCE_BYTES).ok_or(CannotOpen::Altered)?;
        let nonce = XNonce::try_from(nonce).map_err(|_| CannotOpen::Altered)?;
        key.decrypt(&nonce, Payload { msg: sealed, aad: bound }).map_err(|_| CannotOpen::Altered)
    }

    fn accepts_plaintext(&self) -> bool {
        self.accepts_plaintext
    }
}

fn random(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|source| {
        Error::new(ErrorKind::Codec, "the operating system has no random numbers").with_source(source)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyring() -> Keyring {
        Keyring::new("new", Key::new([7; 32])).unwrap().and_old("old", Key::new([8; 32])).unwrap()
    }

    /// RMQ-012: sealed bytes open with the same key and the same bound fields, and with nothing else.
    #[test]
    fn only_what_was_sealed_can_be_opened() {
        let keys = keyring();
        let sealed = keys.seal(b"plain", b"facts").unwrap();
        assert_eq!(sealed.key_id, "new");
        assert_eq!(keys.open("new", &sealed.bytes, b"facts").unwrap(), b"plain");
        assert_eq!(keys.open("new", &sealed.bytes, b"other facts"), Err(CannotOpen::Altered));
        assert_eq!(keys.open("old", &sealed.bytes, b"facts"), Err(CannotOpen::Altered));
        assert_eq!(keys.open("gone", &sealed.bytes, b"facts"), Err(CannotOpen::UnknownKey));
        for at in 0..sealed.bytes.len() {
            for bit in 0..8 {
                let mut flipped = sealed.bytes.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(keys.open("new", &flipped, b"facts"), Err(CannotOpen::Altered));
            }
            assert_eq!(keys.open("new", &sealed.bytes[..at], b"facts"), Err(CannotOpen::Altered));
        }
        let longer = [&sealed.bytes[..], b"x"].concat();
        assert_eq!(keys.open("new", &longer, b"facts"), Err(CannotOpen::Altered));
    }

    /// RMQ-012: no nonce is used twice.
    #[test]
    fn nonces_differ() {
        let keys = keyring();
        let nonce = |_| keys.seal(b"", b"").unwrap().bytes[..NONCE_BYTES].to_vec();
        let nonces: std::collections::HashSet<_> = (0..100_000).map(nonce).collect();
        assert_eq!(nonces.len(), 100_000);
    }

    /// RMQ-012, OBX-125: keys are read from texts, refused with a remedy, and never shown.
    #[test]
    fn keys_are_read_and_never_shown() {
        let hex = "0f".repeat(32);
        let keys = Keyring::parse(&format!("b:{hex}, a:{}", "ab".repeat(32))).unwrap();
        assert_eq!(format!("{keys:?}"), r#"Keyring { current: "b", ids: ["a", "b"], .. }"#);
        assert_eq!(format!("{:?}", Key::from_hex(&hex).unwrap()), "Key(…)");
        for bad in ["", "x", &hex, &format!("a:{hex}0"), &format!("a b:{hex}"), &format!("a:{hex},a:{hex}")] {
            let error = Keyring::parse(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration);
            assert!(!error.to_string().contains("0f0f"), "{error}");
        }
    }
}
