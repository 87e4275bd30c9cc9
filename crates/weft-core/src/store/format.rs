//! The bytes of a header.
//!
//! A file is safetensors: a length, a JSON header, then `k` and `v`. weft's own fields are in the
//! header's `__metadata__`. A given header has exactly one encoding, and only this encoding is
//! accepted: the parsed header is encoded again and compared. So every changed bit is noticed, even
//! in the padding.

use safetensors::Dtype as FileDtype;
use safetensors::tensor::TensorInfo;
use serde::{Deserialize, Serialize};

use super::reason::Reason;
use super::{Header, HostRows, KvKey, RowForm};
use crate::dtype::Dtype;

/// Maximum bytes of a header: room for two million tokens.
pub(super) const HEADER_LIMIT: u64 = 16 << 20;

/// Bytes of the length at the start of a file.
pub(super) const LENGTH_BYTES: u64 = 8;

const FORMAT: &str = "weft-kv";
/// Of full rows.
const VERSION: &str = "1";
const LAYOUT: &str = "k, v: [layers][rows][kv_width], little-endian, keys rotated";
/// Of rows in 8 bits.
const COARSE_VERSION: &str = "2";
const COARSE_LAYOUT: &str = "k, v: [layers][rows][kv_width x int8 in 127ths of the largest \
                             magnitude of their group, that of each group as dtype], \
                             little-endian, keys rotated";
/// The versions that are read.
const VERSIONS: &str = "1 or 2";

/// Tensors start at a multiple of this, as safetensors requires.
const ALIGNMENT: usize = 8;

/// A header as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Json {
    #[serde(rename = "__metadata__")]
    metadata: Fields,
    k: TensorInfo,
    v: TensorInfo,
}

/// `__metadata__`. safetensors requires string values.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    format: String,
    version: String,
    key: String,
    fingerprint: String,
    dtype: String,
    layout: String,
    /// Numbers of a row, and of a group of them. Full rows have neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kv_width: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    reuse: String,
    parent: String,
    home_position: String,
    tokens: String,
    prefill_us: String,
    /// BLAKE3 of all bytes of `k`, then `v`.
    payload_blake3: String,
    /// BLAKE3 of this JSON, without padding and with this field empty.
    header_blake3: String,
}

/// The fields that every version of the format has.
#[derive(Deserialize)]
struct AnyVersion {
    #[serde(rename = "__metadata__")]
    metadata: AnyVersionFields,
}

#[derive(Deserialize)]
struct AnyVersionFields {
    format: String,
    /// Files of other programs have no version; another error is reported for them.
    version: Option<String>,
}

/// A decoded header, and what it implies for its file.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) key: KvKey,
    pub(super) header: Header,
    /// Lower-case hex.
    pub(super) payload_checksum: String,
    /// Bytes of `k`, and of `v`.
    pub(super) tensor_bytes: usize,
}

impl Decoded {
    /// Compares the checksum of the rows read with that of the rows written.
    pub(super) fn check_payload(&self, read: blake3::Hash) -> Result<(), Reason> {
        let (expected, found) = (self.payload_checksum.clone(), read.to_string());
        if found != expected {
            return Err(Reason::PayloadChecksum { expected, found });
        }
        Ok(())
    }
}

/// The checksum of rows, as in a header.
pub(super) fn hash_rows(rows: &HostRows) -> blake3::Hash {
    blake3::Hasher::new().update(&rows.k).update(&rows.v).finalize()
}

/// The bytes before the tensors: length, JSON, padding. `None` if the header could not be read
/// again: it exceeds the limit, or its tensors are too large for a file.
pub(super) fn encode(key: &KvKey, header: &Header, payload_checksum: &str) -> Option<Vec<u8>> {
    let tensor_bytes = header.tensor_bytes()?;
    let (dtype, row) = match header.form {
        RowForm::Full => (file_dtype(header.dtype), header.kv_width),
        form => (FileDtype::U8, form.row_bytes(header.kv_width, header.dtype)?),
    };
    let info = |start| TensorInfo {
        dtype,
        shape: vec![header.layers, header.tokens.len(), row],
        data_offsets: (start, start + tensor_bytes),
    };
    let metadata = fields(key, header, payload_checksum);
    let mut json = Json { metadata, k: info(0), v: info(tensor_bytes) };
    let unsigned = serde_json::to_vec(&json).expect("strings and numbers become JSON");
    json.metadata.header_blake3 = blake3::hash(&unsigned).to_string();
    let mut text = serde_json::to_vec(&json).expect("strings and numbers become JSON");
    text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');

    let length = text.len() as u64;
    (length <= HEADER_LIMIT).then(|| [&length.to_le_bytes()[..], &text].concat())
}

fn fields(key: &KvKey, header: &Header, payload_checksum: &str) -> Fields {
    let tokens: Vec<String> = header.tokens.iter().map(u32::to_string).collect();
    let (version, layout, kv_width, group) = match header.form {
        RowForm::Full => (VERSION, LAYOUT, None, None),
        RowForm::Int8 { group } => {
            (COARSE_VERSION, COARSE_LAYOUT, Some(header.kv_width), Some(group))
        }
    };
    Fields {
        format: FORMAT.to_owned(),
        version: version.to_owned(),
        key: key.to_string(),
        fingerprint: header.fingerprint.clone(),
        dtype: header.dtype.to_string(),
        layout: layout.to_owned(),
        kv_width: kv_width.map(|n| n.to_string()),
        group: group.map(|n| n.to_string()),
        reuse: header.reuse.clone(),
        parent: header.parent.to_string(),
        home_position: header.home_position.to_string(),
        tokens: tokens.join(","),
        prefill_us: header.prefill_us.to_string(),
        payload_blake3: payload_checksum.to_owned(),
        header_blake3: String::new(),
    }
}

/// Decodes the output of [`encode`], without the length, and nothing else.
pub(super) fn decode(text: &[u8]) -> Result<Decoded, Reason> {
    check_version(text)?;
    let json: Json = serde_json::from_slice(text).map_err(|e| Reason::HeaderText(e.to_string()))?;
    let (key, header) = parse(&json).ok_or_else(|| {
        Reason::HeaderText("a number, a key or a number format is invalid".to_owned())
    })?;
    let payload_checksum = json.metadata.payload_blake3;
    let again = encode(&key, &header, &payload_checksum);
    if again.as_deref().map(|bytes| &bytes[LENGTH_BYTES as usize..]) != Some(text) {
        return Err(Reason::HeaderChecksum { found: json.metadata.header_blake3 });
    }
    let tensor_bytes = header.tensor_bytes().expect("it was encoded");
    Ok(Decoded { key, header, payload_checksum, tensor_bytes })
}

/// Checked first, so that a file of another version is reported as such and not as damaged.
fn check_version(text: &[u8]) -> Result<(), Reason> {
    let any: AnyVersion =
        serde_json::from_slice(text).map_err(|e| Reason::HeaderText(e.to_string()))?;
    let AnyVersionFields { format, version } = any.metadata;
    if format != FORMAT {
        return Err(Reason::HeaderText(format!("its format is {format:?}, not {FORMAT:?}")));
    }
    match version {
        None => Err(Reason::HeaderText("it gives no version".to_owned())),
        Some(found) if found == VERSION || found == COARSE_VERSION => Ok(()),
        Some(found) => Err(Reason::Version { found, expected: VERSIONS }),
    }
}

/// Converts the header to typed fields. Spelling and redundant fields are checked by the
/// comparison.
fn parse(json: &Json) -> Option<(KvKey, Header)> {
    let fields = &json.metadata;
    let [layers, _, row] = json.k.shape[..] else { return None };
    let number = |text: &Option<String>| text.as_deref().map(str::parse).transpose().ok();
    let (kv_width, form) = match (number(&fields.kv_width)?, number(&fields.group)?) {
        (Some(kv_width), Some(group)) => (kv_width, RowForm::Int8 { group }),
        _ => (row, RowForm::Full),
    };
    let tokens = match fields.tokens.as_str() {
        "" => Vec::new(),
        list => list.split(',').map(str::parse).collect::<Result<_, _>>().ok()?,
    };
    let header = Header {
        fingerprint: fields.fingerprint.clone(),
        dtype: [Dtype::F32, Dtype::Bf16].into_iter().find(|d| d.to_string() == fields.dtype)?,
        form,
        layers,
        kv_width,
        reuse: fields.reuse.clone(),
        parent: fields.parent.parse().ok()?,
        home_position: fields.home_position.parse().ok()?,
        tokens,
        prefill_us: fields.prefill_us.parse().ok()?,
    };
    Some((fields.key.parse().ok()?, header))
}

fn file_dtype(dtype: Dtype) -> FileDtype {
    match dtype {
        Dtype::F32 => FileDtype::F32,
        Dtype::Bf16 => FileDtype::BF16,
    }
}
