//! Checksums and signatures made right: a fuzzer cannot guess them, and behind them lies most of the
//! readers' code.

use serde_json::{Value, json};
use weft_core::store::KvKey;

use crate::KEY;

/// Bytes of the length that opens a chunk file.
const LENGTH_BYTES: usize = 8;

/// A chunk file with both of its checksums made right; none if its header is no JSON.
pub fn chunk_file(input: &[u8]) -> Option<Vec<u8>> {
    let (length, rest) = input.split_at_checked(LENGTH_BYTES)?;
    let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    let (text, rows) = rest.split_at_checked(length)?;
    let mut json: Value = serde_json::from_slice(text).ok()?;
    set(&mut json, "payload_blake3", blake3::hash(rows).to_string())?;
    set(&mut json, "header_blake3", String::new())?;
    let unsigned = blake3::hash(json.to_string().as_bytes()).to_string();
    set(&mut json, "header_blake3", unsigned)?;
    let mut text = json.to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    Some([&(text.len() as u64).to_le_bytes(), &text[..], rows].concat())
}

fn set(json: &mut Value, name: &str, to: String) -> Option<()> {
    *json.get_mut("__metadata__")?.get_mut(name)? = Value::String(to);
    Some(())
}

/// A parcel of the newest version with its chunk's checksum made right, and its first chunk file
/// sealed under the key of its tokens; both are signed.
pub fn parcel(input: &[u8]) -> Option<Vec<u8>> {
    let mut lines = input.splitn(3, |byte| *byte == b'\n');
    let mut first: Value = serde_json::from_slice(lines.next()?).ok()?;
    let chunk = blake3::hash(first.get("chunk")?.to_string().as_bytes());
    let fields = first.as_object_mut()?;
    fields.remove("text_blake3");
    fields.insert("version".to_owned(), 2.into());
    fields.insert("chunk_blake3".to_owned(), chunk.to_string().into());
    let signature = KEY.sign(&[b"parcel: chunk", chunk.as_bytes()]);
    fields.insert("signature".to_owned(), signature.to_string().into());
    let mut bytes = format!("{first}\n").into_bytes();
    if let (Some(_), Some(rows)) = (lines.next(), lines.next()) {
        let rows = under_its_key(rows).unwrap_or_else(|| rows.to_vec());
        let rows = chunk_file(&rows).unwrap_or(rows);
        let hash = blake3::hash(&rows);
        let signature = KEY.sign(&[b"parcel: rows", chunk.as_bytes(), hash.as_bytes()]).to_string();
        let section = json!({"rows_bytes": rows.len(), "signature": signature});
        bytes.extend(format!("{section}\n").into_bytes());
        bytes.extend(rows);
    }
    Some(bytes)
}

/// A chunk file with the key of its tokens.
fn under_its_key(input: &[u8]) -> Option<Vec<u8>> {
    let (length, rest) = input.split_at_checked(LENGTH_BYTES)?;
    let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    let (text, rows) = rest.split_at_checked(length)?;
    let mut json: Value = serde_json::from_slice(text).ok()?;
    let field = |name: &str| json.get("__metadata__")?.get(name)?.as_str();
    let parent: KvKey = field("parent")?.parse().ok()?;
    let tokens = field("tokens")?.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>();
    let key = KvKey::of_rows(&parent, &tokens.ok()?);
    set(&mut json, "key", key.to_string())?;
    let text = json.to_string().into_bytes();
    Some([&(text.len() as u64).to_le_bytes(), &text[..], rows].concat())
}
