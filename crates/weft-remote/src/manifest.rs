//! The manifest of stored rows: what they are, and the checksum of every range of them.
//!
//! The rows of a manifest are one object: for each layer the keys, then the values, so that some
//! layers are one range. Each of these ranges has its own checksum, and the object is named by
//! all of them: a manifest cannot name other rows than those it describes.

use serde::{Deserialize, Serialize};
use weft_core::dtype::Dtype;
use weft_core::store::{Header, HostRows, KvKey, RowForm};

use crate::miss::Miss;
use crate::seal::{self, Trust};

const FORMAT: &str = "weft-remote-rows";
/// Of full rows, and of rows in 8 bits.
const VERSION: u32 = 1;
const COARSE_VERSION: u32 = 2;
/// Separates signatures of manifests from those of labels.
const PURPOSE: &str = "remote manifest 1";

/// Maximum bytes of a manifest: room for 700,000 tokens.
pub(crate) const MANIFEST_LIMIT: u64 = 8 << 20;

/// The JSON form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Json {
    format: String,
    version: u32,
    key: String,
    fingerprint: String,
    dtype: String,
    layers: usize,
    kv_width: usize,
    /// Numbers that share a scale, if rows are stored in 8 bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<usize>,
    reuse: String,
    parent: String,
    home_position: usize,
    prefill_us: u64,
    tokens: Vec<u32>,
    /// BLAKE3 of the keys and of the values of each layer.
    ranges: Vec<[String; 2]>,
}

/// The fields that every version has.
#[derive(Deserialize)]
struct AnyVersion {
    format: String,
    version: u32,
}

/// A manifest that describes rows without contradiction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Manifest {
    pub(crate) key: KvKey,
    pub(crate) header: Header,
    /// Of the keys and of the values of each layer.
    pub(crate) ranges: Vec<[blake3::Hash; 2]>,
}

impl Manifest {
    /// The manifest of rows as they are stored. `None` if they do not have the header's size.
    pub(crate) fn of(key: &KvKey, header: &Header, rows: &HostRows) -> Option<Self> {
        let tensor_bytes = header.tensor_bytes()?;
        if (rows.k.len(), rows.v.len()) != (tensor_bytes, tensor_bytes) || tensor_bytes == 0 {
            return None;
        }
        let n = tensor_bytes / header.layers;
        let layers = rows.k.chunks(n).zip(rows.v.chunks(n));
        let ranges = layers.map(|(k, v)| [blake3::hash(k), blake3::hash(v)]).collect();
        Some(Self { key: *key, header: header.clone(), ranges })
    }

    /// Bytes of the keys of one layer, and of its values.
    pub(crate) fn range_bytes(&self) -> usize {
        self.header.tensor_bytes().unwrap_or_default() / self.header.layers.max(1)
    }

    /// The name of the object with the rows.
    pub(crate) fn object(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"weft remote rows 1\0");
        self.ranges.iter().flatten().for_each(|hash| {
            hasher.update(hash.as_bytes());
        });
        hasher.finalize()
    }

    /// Its object.
    pub(crate) fn write(&self, trust: &Trust) -> Vec<u8> {
        let Header { fingerprint, dtype, layers, kv_width, reuse, parent, .. } = &self.header;
        let (version, group) = match self.header.form {
            RowForm::Full => (VERSION, None),
            RowForm::Int8 { group } => (COARSE_VERSION, Some(group)),
        };
        let json = Json {
            format: FORMAT.to_owned(),
            version,
            key: self.key.to_string(),
            fingerprint: fingerprint.clone(),
            dtype: dtype.to_string(),
            layers: *layers,
            kv_width: *kv_width,
            group,
            reuse: reuse.clone(),
            parent: parent.to_string(),
            home_position: self.header.home_position,
            prefill_us: self.header.prefill_us,
            tokens: self.header.tokens.clone(),
            ranges: self.ranges.iter().map(|pair| pair.map(|hash| hash.to_string())).collect(),
        };
        seal::write(PURPOSE, &json, trust)
    }

    /// Reads an object. Nothing of its size is believed: only its own bytes take memory.
    pub(crate) fn read(text: &[u8], trust: &Trust) -> Result<Self, Miss> {
        let body = seal::body(PURPOSE, text, trust)?;
        let wrong = |reason: &str| Miss::Form(reason.to_owned());
        let any: AnyVersion = seal::json(body)?;
        if any.format != FORMAT {
            return Err(Miss::Form(format!("its format is {:?}, not {FORMAT:?}", any.format)));
        }
        if any.version != VERSION && any.version != COARSE_VERSION {
            return Err(Miss::Version { found: any.version, expected: COARSE_VERSION });
        }
        let json: Json = seal::json(body)?;
        if json.group.is_some() != (any.version == COARSE_VERSION) {
            return Err(wrong("only rows in 8 bits have groups, and they have"));
        }
        let manifest = parse(json).ok_or_else(|| wrong("a key, a hash or a name is invalid"))?;
        let header = &manifest.header;
        let found = header.key();
        if found != manifest.key {
            return Err(Miss::Key { found });
        }
        if header.layers == 0 || header.layers != manifest.ranges.len() {
            return Err(wrong("it does not have two ranges for each layer"));
        }
        match header.tensor_bytes() {
            None | Some(0) => Err(wrong("its sizes are impossible")),
            Some(_) => Ok(manifest),
        }
    }
}

fn parse(json: Json) -> Option<Manifest> {
    let dtypes = [Dtype::F32, Dtype::Bf16];
    let hash = |text: &String| blake3::Hash::from_hex(text).ok();
    let header = Header {
        dtype: dtypes.into_iter().find(|dtype| dtype.to_string() == json.dtype)?,
        fingerprint: json.fingerprint,
        form: json.group.map_or(RowForm::Full, |group| RowForm::Int8 { group }),
        layers: json.layers,
        kv_width: json.kv_width,
        reuse: json.reuse,
        parent: json.parent.parse().ok()?,
        home_position: json.home_position,
        tokens: json.tokens,
        prefill_us: json.prefill_us,
    };
    let ranges: Option<Vec<_>> =
        json.ranges.iter().map(|[k, v]| Some([hash(k)?, hash(v)?])).collect();
    Some(Manifest { key: json.key.parse().ok()?, header, ranges: ranges? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            fingerprint: "model".to_owned(),
            dtype: Dtype::Bf16,
            form: RowForm::Full,
            layers: 2,
            kv_width: 3,
            reuse: "exact".to_owned(),
            parent: KvKey::NOTHING,
            home_position: 4,
            tokens: vec![5, 6],
            prefill_us: 7,
        }
    }

    fn manifest(header: &Header) -> Manifest {
        let key = header.key();
        let rows = HostRows { k: (0..24).collect(), v: (24..48).collect() };
        Manifest::of(&key, header, &rows).unwrap()
    }

    #[test]
    fn a_manifest_reads_back_and_names_its_rows_by_their_bytes() {
        let manifest = manifest(&header());
        let text = manifest.write(&Trust::Anyone);
        assert_eq!(Manifest::read(&text, &Trust::Anyone).unwrap(), manifest);
        assert_eq!((manifest.range_bytes(), manifest.ranges.len()), (12, 2));
        let mut other = manifest.clone();
        other.ranges[1][1] = blake3::hash(b"other");
        assert_ne!(other.object(), manifest.object());
    }

    #[test]
    fn a_manifest_that_contradicts_itself_is_refused() {
        let good = manifest(&header());
        let reason = |manifest: &Manifest| {
            Manifest::read(&manifest.write(&Trust::Anyone), &Trust::Anyone).unwrap_err().name()
        };
        let key = Manifest { key: KvKey::from_bytes([1; 32]), ..good.clone() };
        assert_eq!(reason(&key), "key");
        let ranges = Manifest { ranges: good.ranges[..1].to_vec(), ..good.clone() };
        assert_eq!(reason(&ranges), "form");
        for (layers, kv_width) in [(0, 3), (2, 0), (2, usize::MAX)] {
            let header = Header { layers, kv_width, ..header() };
            assert_eq!(reason(&Manifest { header, ..good.clone() }), "form", "{layers} {kv_width}");
        }
    }

    #[test]
    fn a_coarse_manifest_reads_back_and_is_never_taken_for_a_full_one() {
        let coarse = Header { form: RowForm::Int8 { group: 3 }, ..header() };
        let rows = HostRows { k: (0..20).collect(), v: (20..40).collect() };
        let manifest = Manifest::of(&coarse.key(), &coarse, &rows).unwrap();
        let text = manifest.write(&Trust::Anyone);
        assert_eq!(Manifest::read(&text, &Trust::Anyone).unwrap(), manifest);
        assert_eq!(manifest.range_bytes(), 10);
        assert_ne!(manifest.key, header().key());
        let reason = |manifest: &Manifest| {
            Manifest::read(&manifest.write(&Trust::Anyone), &Trust::Anyone).unwrap_err().name()
        };
        // Under the key of full rows, or full rows under this key.
        assert_eq!(reason(&Manifest { key: header().key(), ..manifest.clone() }), "key");
        assert_eq!(reason(&Manifest { header: header(), ..manifest.clone() }), "key");
        for group in [0, 2, 4] {
            let header = Header { form: RowForm::Int8 { group }, ..header() };
            let wrong = Manifest { key: header.key(), header, ..manifest.clone() };
            assert_eq!(reason(&wrong), "form", "{group}");
        }
        for (from, to) in [("\"version\":2", "\"version\":1"), (",\"group\":3", "")] {
            let text = String::from_utf8(text.clone()).unwrap().replace(from, to);
            let content = text.lines().next().unwrap();
            let value: serde_json::Value = serde_json::from_str(content).unwrap();
            let sealed = seal::write(PURPOSE, &value, &Trust::Anyone);
            assert_eq!(Manifest::read(&sealed, &Trust::Anyone).unwrap_err().name(), "form");
        }
    }

    #[test]
    fn rows_of_another_size_have_no_manifest() {
        let key = KvKey::of_rows(&KvKey::NOTHING, &[5, 6]);
        for (k, v) in [(23, 24), (24, 25), (0, 0)] {
            let rows = HostRows { k: vec![0; k].into(), v: vec![0; v].into() };
            assert_eq!(Manifest::of(&key, &header(), &rows), None);
        }
    }
}
