//! Checksums made right: a fuzzer cannot guess them, and behind them lies most of the readers' code.

use serde_json::Value;

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

/// A parcel with its text's checksum made right, and its first chunk file sealed.
pub fn parcel(input: &[u8]) -> Option<Vec<u8>> {
    let mut lines = input.splitn(3, |byte| *byte == b'\n');
    let mut first: Value = serde_json::from_slice(lines.next()?).ok()?;
    let text = first.get("chunk")?.get("text")?.as_str()?;
    let hash = blake3::hash(text.as_bytes()).to_string();
    *first.get_mut("text_blake3")? = Value::String(hash);
    let mut bytes = format!("{first}\n").into_bytes();
    if let (Some(_), Some(rows)) = (lines.next(), lines.next()) {
        let rows = chunk_file(rows).unwrap_or_else(|| rows.to_vec());
        bytes.extend(format!("{{\"rows_bytes\":{}}}\n", rows.len()).into_bytes());
        bytes.extend(rows);
    }
    Some(bytes)
}
