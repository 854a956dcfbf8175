//! Payloads and headers that the database, its backups and its operators cannot read.
//!
//! A message is encrypted when it is published, before any SQL, and decrypted right before its handlers are called. The
//! stored headers name the key. Nothing here knows an algorithm: that is a [`Cipher`]'s.

#[cfg(feature = "encryption")]
mod keyring;

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;

#[cfg(feature = "encryption")]
pub use self::keyring::{Key, Keyring};
use crate::error::{Error, ErrorKind, Result};
use crate::id::MessageId;
use crate::message::{Headers, Message, NewMessage, decode_headers, encode_headers};
use crate::outcome::{Failure, FailureClass};

/// The one header of an encrypted message: the form of the stored payload, and the id of the key.
pub const ENCRYPTION_HEADER: &str = "posthaste-encryption";
/// The form: the length of the headers in four bytes, the headers as JSON, the payload.
const FORM: &str = "1 ";

/// Encrypts and decrypts, and detects changes. [`Keyring`] is one, for keys in memory; write one of your own for keys that
/// never leave their vault.
pub trait Cipher: Debug + Send + Sync + 'static {
    /// Encrypts with the key for new messages, and returns that key's id and the bytes to store. `bound` is not stored, but
    /// decrypting with another one fails.
    fn seal(&self, plain: &[u8], bound: &[u8]) -> Result<Sealed>;

    /// Decrypts bytes that were sealed under the key with this id, or says why it cannot.
    fn open(&self, key_id: &str, sealed: &[u8], bound: &[u8]) -> std::result::Result<Vec<u8>, CannotOpen>;

    /// Whether messages that are not encrypted are delivered, too: those from before, and from publishers in other languages.
    fn accepts_plaintext(&self) -> bool {
        true
    }
}

/// A cipher's result for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Under which key: 1 to 100 bytes.
    pub key_id: String,
    /// The stored bytes.
    pub bytes: Vec<u8>,
}

/// Why a message cannot be decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotOpen {
    /// The key is not here: it may be, once the configuration is right.
    UnknownKey,
    /// It differs from the encrypted message: the bytes, or the fields they are bound to, were changed.
    Altered,
    /// The key store cannot be reached.
    Unavailable,
}

/// The fields to which the ciphertext is bound: it does not decrypt under another id, topic or content type.
fn bound(id: MessageId, topic: &str, content_type: &str) -> Vec<u8> {
    let mut bound = b"posthaste message 1".to_vec();
    for part in [id.as_bytes(), topic.as_bytes(), content_type.as_bytes()] {
        bound.extend((part.len() as u64).to_be_bytes());
        bound.extend(part);
    }
    bound
}

/// Encrypts the payload and the headers of a message.
pub(crate) fn seal(cipher: &dyn Cipher, message: &mut NewMessage) -> Result<()> {
    let headers = encode_headers(message.headers()).unwrap_or_default();
    let length = u32::try_from(headers.len())
        .map_err(|_| Error::invalid("headers are too long to be encrypted", "shorten them"))?;
    let mut plain = Vec::with_capacity(4 + headers.len() + message.payload().len());
    plain.extend(length.to_be_bytes());
    plain.extend(headers.as_bytes());
    plain.extend(message.payload());
    let bound = bound(message.id(), message.topic(), message.content_type());
    let sealed = catch_unwind(AssertUnwindSafe(|| cipher.seal(&plain, &bound)));
    let sealed = sealed.unwrap_or_else(|_| Err(Error::new(ErrorKind::Configuration, "the cipher panicked")));
    let sealed = sealed.map_err(|error| error.during("encrypt"))?;
    let key_id = crate::text::required("the id of a key", sealed.key_id, 100)?;
    message.payload = Bytes::from(sealed.bytes);
    message.headers = Headers::from([(ENCRYPTION_HEADER.to_owned(), format!("{FORM}{key_id}"))]);
    Ok(())
}

/// Whether a message is encrypted.
pub(crate) fn is_sealed(message: &Message) -> bool {
    message.headers.contains_key(ENCRYPTION_HEADER)
}

/// Decrypts a message, or returns its outcome. A cipher that panics costs its message an attempt, as a handler does.
pub(crate) fn open(cipher: Option<&dyn Cipher>, message: &mut Message) -> Result<(), Failure> {
    catch_unwind(AssertUnwindSafe(|| open_with(cipher, message)))
        .unwrap_or_else(|_| Err(Failure::business("the cipher panicked")))
}

fn open_with(cipher: Option<&dyn Cipher>, message: &mut Message) -> Result<(), Failure> {
    let Some(mark) = message.headers.get(ENCRYPTION_HEADER) else {
        return match cipher {
            Some(cipher) if !cipher.accepts_plaintext() => Err(Failure::permanent(
                "the message is not encrypted, and only encrypted ones are accepted here",
            )),
            _ => Ok(()),
        };
    };
    // A matter of configuration, like a missing route: the message waits for long, at no cost.
    let elsewhere = |text: String| Failure::new(FailureClass::Unroutable, text);
    let Some(key_id) = mark.strip_prefix(FORM) else {
        return Err(elsewhere(
            "the message is encrypted in a form that this version does not know".to_owned(),
        ));
    };
    let Some(cipher) = cipher else {
        return Err(elsewhere(format!(
            "the message is encrypted under `{key_id}`, and no keys are here; give the outbox some"
        )));
    };
    let bound = bound(message.id, message.topic.as_str(), &message.content_type);
    let plain = cipher.open(key_id, &message.payload, &bound).map_err(|error| match error {
        CannotOpen::UnknownKey => elsewhere(format!("the message is encrypted under `{key_id}`, which is not here; add it to the keyring")),
        CannotOpen::Unavailable => Failure::infrastructure("the keys cannot be reached"),
        CannotOpen::Altered => Failure::permanent(
            "the message cannot be decrypted: its bytes, id, topic or content type were changed, or its key was",
        ),
    })?;
    let (headers, payload) =
        split(&plain).ok_or_else(|| Failure::permanent("what was encrypted is no message"))?;
    message.headers = headers;
    message.payload = payload;
    Ok(())
}

fn split(plain: &[u8]) -> Option<(Headers, Bytes)> {
    let (length, rest) = plain.split_first_chunk::<4>()?;
    let (headers, payload) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let headers = decode_headers(Some(std::str::from_utf8(headers).ok()?)).ok()?;
    Some((headers, Bytes::copy_from_slice(payload)))
}

/// Headers of a publisher's own that would be taken for the mark of an encrypted message are refused.
pub(crate) fn check_headers(headers: &Headers) -> Result<()> {
    if headers.contains_key(ENCRYPTION_HEADER) {
        return Err(Error::new(ErrorKind::InvalidInput, "a header has a name of posthaste's own")
            .with_context("header", ENCRYPTION_HEADER)
            .with_remedy("give it another name"));
    }
    Ok(())
}
