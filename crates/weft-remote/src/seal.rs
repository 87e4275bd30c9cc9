//! Small objects of two lines: a line of JSON, and a line that seals it with a checksum and, if
//! there is a key, a signature of the first line's bytes.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weft_core::store::{Signature, SigningKey};

use crate::miss::{Miss, first_line};

/// Whose rows are used.
#[derive(Clone, Debug, Default)]
pub enum Trust {
    /// Nobody's: texts are shared, rows are computed here.
    #[default]
    Nobody,
    /// Everybody's who can write to the store.
    Anyone,
    /// Those that somebody with this key has signed.
    Key(SigningKey),
}

impl Trust {
    /// The key, if there is one.
    pub fn key(&self) -> Option<&SigningKey> {
        match self {
            Self::Key(key) => Some(key),
            Self::Nobody | Self::Anyone => None,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seal {
    /// BLAKE3 of the first line, without its line feed.
    blake3: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signature: Option<String>,
}

/// Writes both lines. `purpose` separates the signatures of different kinds of objects.
pub(crate) fn write(purpose: &str, body: &impl Serialize, trust: &Trust) -> Vec<u8> {
    let mut text = serde_json::to_vec(body).expect("texts and numbers become JSON");
    let signature = trust.key().map(|key| key.sign(&[purpose.as_bytes(), &text]).to_string());
    let seal = Seal { blake3: blake3::hash(&text).to_string(), signature };
    let seal = serde_json::to_vec(&seal).expect("texts become JSON");
    text.push(b'\n');
    text.extend(seal);
    text.push(b'\n');
    text
}

/// Reads what [`write`] wrote, if it is undamaged and, with a key, signed by it.
pub(crate) fn read<T: DeserializeOwned>(
    purpose: &str,
    text: &[u8],
    trust: &Trust,
) -> Result<T, Miss> {
    json(body(purpose, text, trust)?)
}

/// A line of JSON. Only what `T` has takes memory.
pub(crate) fn json<T: DeserializeOwned>(line: &[u8]) -> Result<T, Miss> {
    serde_json::from_slice(line).map_err(|error| Miss::Form(first_line(&error)))
}

/// The first of both lines, if they are undamaged and, with a key, signed by it.
pub(crate) fn body<'t>(purpose: &str, text: &'t [u8], trust: &Trust) -> Result<&'t [u8], Miss> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let lines = [lines.next(), lines.next(), lines.next(), lines.next()];
    let [Some(body), Some(seal), Some([]), None] = lines else {
        return Err(Miss::Form("it does not consist of two lines".to_owned()));
    };
    let seal: Seal = json(seal)?;
    if blake3::hash(body).to_string() != seal.blake3 {
        return Err(Miss::ManifestChecksum);
    }
    if let Some(key) = trust.key() {
        let signature = seal.signature.ok_or(Miss::Unsigned)?;
        let parsed = Signature::parse(&signature).ok_or(Miss::Signature)?;
        // A signature has one spelling.
        let is_spelt = parsed.to_string() == signature;
        if !is_spelt || !key.has_signed(&[purpose.as_bytes(), body], &parsed) {
            return Err(Miss::Signature);
        }
    }
    Ok(body)
}

/// Whether somebody signed an undamaged object, whoever it was.
pub(crate) fn is_signed(text: &[u8]) -> bool {
    let seal = text.split(|byte| *byte == b'\n').nth(1).map(json::<Seal>);
    let is_undamaged = body("", text, &Trust::Nobody).is_ok();
    is_undamaged && matches!(seal, Some(Ok(Seal { signature: Some(_), .. })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> Trust {
        Trust::Key(SigningKey::from_bytes([byte; 32]))
    }

    fn read_back(text: &[u8], trust: &Trust) -> Result<Vec<u32>, &'static str> {
        read("numbers", text, trust).map_err(|miss: Miss| miss.name())
    }

    #[test]
    fn only_signed_objects_are_read_with_a_key() {
        let (signed, unsigned) =
            (write("numbers", &[1, 2], &key(1)), write("numbers", &[1, 2], &Trust::Anyone));
        assert_eq!(read_back(&signed, &key(1)), Ok(vec![1, 2]));
        assert_eq!(read_back(&signed, &Trust::Anyone), Ok(vec![1, 2]));
        assert_eq!(read_back(&signed, &key(2)), Err("signature"));
        assert_eq!(read_back(&unsigned, &key(1)), Err("unsigned"));
        assert_eq!(read_back(&unsigned, &Trust::Nobody), Ok(vec![1, 2]));
        let other = write("letters", &[1, 2], &key(1));
        assert_eq!(read_back(&other, &key(1)), Err("signature"));
    }

    #[test]
    fn every_flipped_bit_of_a_signed_object_is_noticed() {
        let text = write("numbers", &[1, 2, 3], &key(1));
        for bit in 0..8 * text.len() {
            let mut damaged = text.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(read_back(&damaged, &key(1)).is_err(), "bit {bit}");
        }
        for length in 0..text.len() {
            assert!(read_back(&text[..length], &key(1)).is_err(), "{length} bytes");
        }
    }
}
