//! The seeds of `remote`: a manifest and its rows, or a label and its card; right ones, and others
//! that are signed all the same.

use serde_json::{Value, json};
use weft_fuzz::{FINGERPRINT, VOCABULARY, remote_chunk, sealed_remote};

/// An input with the rows or the card after its two lines; the second is made right.
fn input(small: &Value, large: &[u8]) -> Vec<u8> {
    let unsealed = [format!("{small}\n{{}}\n").as_bytes(), large].concat();
    sealed_remote(&unsealed).unwrap_or(unsealed)
}

fn manifest(changes: &[(&str, Value)]) -> Value {
    let root =
        blake3::Hasher::new().update(b"weft kv rows 1\0").update(FINGERPRINT.as_bytes()).finalize();
    let mut json = json!({
        "format": "weft-remote-rows", "version": 1, "key": "", "fingerprint": FINGERPRINT,
        "dtype": "bf16", "layers": 2, "kv_width": 4, "reuse": "exact", "parent": root.to_string(),
        "home_position": 0, "prefill_us": 12, "tokens": remote_chunk().tokens, "ranges": [],
    });
    for (name, value) in changes {
        json[*name] = value.clone();
    }
    json
}

fn coarse(group: usize, changes: &[(&str, Value)]) -> Value {
    let mut json = manifest(&[("version", json!(2)), ("reuse", json!("coarse"))]);
    json["group"] = group.into();
    for (name, value) in changes {
        json[*name] = value.clone();
    }
    json
}

fn label(changes: &[(&str, Value)]) -> Value {
    let chunk = remote_chunk();
    let mut json = json!({
        "format": "weft-remote-chunk", "version": 1, "vocabulary": VOCABULARY,
        "id": chunk.id.to_string(), "kind": "context", "metadata": {"name": "a.txt"},
        "n_tokens": chunk.tokens.len(), "bytes": 0, "blake3": "",
    });
    for (name, value) in changes {
        json[*name] = value.clone();
    }
    json
}

/// Rows of the keys and values of two layers: `row` for each token.
fn rows(row: &[u8]) -> Vec<u8> {
    row.repeat(2 * 2 * remote_chunk().tokens.len())
}

/// All seeds, by name.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let full = rows(&[0x80, 0x3f].repeat(4));
    let coarse_row = |scale: u16| {
        let [low, high] = scale.to_le_bytes();
        rows(&[127, 0x81, 0x80, 3, low, high, low, high])
    };
    let one = coarse_row(0x3f80);
    let mut card = remote_chunk();
    card.metadata.insert("name".to_owned(), "a.txt".to_owned());
    let card = card.to_json();
    let other_text = String::from_utf8_lossy(&card).replace("A text.", "B text.").into_bytes();
    let huge = json!(u64::MAX / 8);
    let seeds = [
        ("rows", input(&manifest(&[]), &full)),
        ("f32", input(&manifest(&[("dtype", json!("f32"))]), &rows(&[0, 0, 0x80, 0x3f].repeat(4)))),
        ("coarse", input(&coarse(2, &[]), &one)),
        ("coarse-row", input(&coarse(4, &[]), &rows(&[1, 2, 3, 4, 0x80, 0x3f]))),
        (
            "coarse-f32",
            input(&coarse(4, &[("dtype", json!("f32"))]), &rows(&[1, 2, 3, 4, 0, 0, 0x80, 0x3f])),
        ),
        ("infinite", input(&coarse(2, &[]), &coarse_row(0x7f80))),
        ("negative", input(&coarse(2, &[]), &coarse_row(0xbf80))),
        ("no-number", input(&coarse(2, &[]), &coarse_row(0x7fc1))),
        ("group-0", input(&coarse(0, &[]), &one)),
        ("group-3", input(&coarse(3, &[]), &one)),
        ("group-huge", input(&coarse(usize::MAX / 8, &[]), &one)),
        ("group-in-1", input(&coarse(2, &[("version", json!(1))]), &one)),
        ("no-group-in-2", input(&manifest(&[("version", json!(2))]), &full)),
        ("exact-coarse", input(&coarse(2, &[("reuse", json!("exact"))]), &one)),
        ("version-3", input(&manifest(&[("version", json!(3))]), &full)),
        ("short", input(&manifest(&[]), &full[..full.len() - 1])),
        ("long", input(&manifest(&[]), &[&full[..], b"more"].concat())),
        ("empty", input(&manifest(&[]), &[])),
        ("layers-0", input(&manifest(&[("layers", json!(0))]), &full)),
        ("layers-huge", input(&manifest(&[("layers", huge.clone())]), &full)),
        ("width-huge", input(&manifest(&[("kv_width", huge.clone())]), &full)),
        ("no-tokens", input(&manifest(&[("tokens", json!([]))]), &full)),
        ("other-tokens", input(&manifest(&[("tokens", json!([1, 2, 3]))]), &full)),
        ("other-model", input(&manifest(&[("fingerprint", json!("another"))]), &full)),
        ("path", input(&manifest(&[("reuse", json!("../x"))]), &full)),
        ("more", input(&manifest(&[("more", json!(1))]), &full)),
        ("unsealed", [format!("{}\n{{}}\n", manifest(&[])).as_bytes(), &full].concat()),
        ("label", input(&label(&[]), &card)),
        ("label-version", input(&label(&[("version", json!(2))]), &card)),
        ("label-kind", input(&label(&[("kind", json!("system"))]), &card)),
        ("label-vocabulary", input(&label(&[("vocabulary", json!("fedcba9876543210"))]), &card)),
        ("card-text", input(&label(&[]), &other_text)),
        ("card-cut", input(&label(&[]), &card[..card.len() / 2])),
        ("card-none", input(&label(&[]), &[])),
    ];
    seeds.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}
