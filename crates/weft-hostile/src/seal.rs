//! Checksums and signatures made right: a fuzzer cannot guess them, and behind them lies most of
//! the readers' code.

use serde_json::{Value, json};
use weft_core::store::{KvKey, RowForm};

use crate::KEY;
use crate::remote::split;

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
    let group = field("group").and_then(|group| group.parse().ok());
    let form = group.map_or(RowForm::Full, |group| RowForm::Int8 { group });
    let key = KvKey::of_rows(&form.place(&parent), &tokens.ok()?);
    set(&mut json, "key", key.to_string())?;
    let text = json.to_string().into_bytes();
    Some([&(text.len() as u64).to_le_bytes(), &text[..], rows].concat())
}

/// The most layers of a manifest whose checksums are made right.
const MOST_LAYERS: u64 = 64;

/// Objects of a remote store: a manifest with the key of its tokens and the checksums of its rows,
/// or a label with the checksum of its card; both are signed.
pub fn remote(input: &[u8]) -> Option<Vec<u8>> {
    let (small, large) = split(input);
    let line = small.split(|byte| *byte == b'\n').next()?;
    let mut json: Value = serde_json::from_slice(line).ok()?;
    let fields = json.as_object_mut()?;
    let purpose = if fields.contains_key("metadata") {
        fields.insert("bytes".to_owned(), large.len().into());
        fields.insert("blake3".to_owned(), blake3::hash(large).to_string().into());
        "remote label 1"
    } else {
        let parent: KvKey = fields.get("parent")?.as_str()?.parse().ok()?;
        let tokens = fields.get("tokens")?.as_array()?.iter();
        let tokens: Option<Vec<u32>> =
            tokens.map(|token| token.as_u64()?.try_into().ok()).collect();
        let group = fields.get("group").and_then(Value::as_u64);
        let form = group.map_or(RowForm::Full, |group| RowForm::Int8 { group: group as usize });
        let key = KvKey::of_rows(&form.place(&parent), &tokens?);
        fields.insert("key".to_owned(), key.to_string().into());
        let n_layers = fields.get("layers")?.as_u64().filter(|n| (1..=MOST_LAYERS).contains(n))?;
        let range_bytes = large.len() / (2 * n_layers as usize);
        let hashes = large.chunks(range_bytes.max(1)).map(|range| blake3::hash(range).to_string());
        let hashes: Vec<String> = hashes.take(2 * n_layers as usize).collect();
        let ranges: Vec<&[String]> = hashes.chunks(2).collect();
        fields.insert("ranges".to_owned(), json!(ranges));
        "remote manifest 1"
    };
    let text = json.to_string();
    let signature = KEY.sign(&[purpose.as_bytes(), text.as_bytes()]).to_string();
    let seal = json!({"blake3": blake3::hash(text.as_bytes()).to_string(), "signature": signature});
    Some([format!("{text}\n{seal}\n").as_bytes(), large].concat())
}
