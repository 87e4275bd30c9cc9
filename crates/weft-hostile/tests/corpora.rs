//! Every input of the corpora is read or refused, without a panic. A fault that a fuzzer found is
//! in them from then on.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weft_core::chunk::{Chunk, Parcel};
use weft_core::store::Store;
use weft_hostile::{FINGERPRINT, KEY, TARGETS, parcel_homes, parcel_tokenizer, pulled_from};

/// The longest that an input may take. Fuzz targets have a second; here, others use the machine
/// too.
const LONGEST: Duration = Duration::from_secs(10);

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

#[test]
fn every_input_is_read_or_refused() {
    for (name, target) in TARGETS {
        let folder = fuzz().join("corpus").join(name);
        let inputs = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
        let mut n_inputs = 0;
        for input in inputs {
            let path = input.unwrap().path();
            let start = Instant::now();
            let bytes = fs::read(&path).unwrap();
            let result = std::panic::catch_unwind(|| target(&bytes));
            assert!(result.is_ok(), "{} panicked", path.display());
            assert!(start.elapsed() < LONGEST, "{} took {:?}", path.display(), start.elapsed());
            n_inputs += 1;
        }
        assert!(n_inputs >= 20, "{name} has {n_inputs} inputs");
    }
}

#[test]
fn every_target_is_built_and_run() {
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    let script = fs::read_to_string(fuzz().join("run")).unwrap();
    let named: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    for name in &named {
        assert!(manifest.contains(&format!("[[bin]]\nname = \"{name}\"\n")), "no program {name}");
        let program = fs::read_to_string(fuzz().join(format!("targets/{name}.rs"))).unwrap();
        assert!(program.contains(&format!("weft_fuzz::{name}(input)")), "{program}");
    }
    // And one program that runs any of them, for a campaign on another machine.
    assert_eq!(manifest.matches("[[bin]]").count(), named.len() + 1);
    assert!(manifest.contains("[[bin]]\nname = \"any\"\n"), "no program any");
    assert!(script.contains(&format!("targets=({})", named.join(" "))), "fuzz/run");
}

/// Otherwise the target would never come to the rows of a parcel.
#[test]
fn a_seed_of_parcels_has_rows_that_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path(), 1 << 20).unwrap();
    let parcel = Parcel::open(&fuzz().join("corpus/parcel/rows")).unwrap();
    let (kind, text) = (parcel.kind(), parcel.text());
    let chunk = Chunk::new(parcel_tokenizer(), kind, text, Default::default()).unwrap();
    let parcel = parcel.signed_by(Some(&KEY)).expect("signed");
    let imported = parcel.import_rows(&mut store, &parcel_homes(&chunk), FINGERPRINT).unwrap();
    assert_eq!((imported.files, imported.refused.len()), (1, 0), "{:?}", imported.refused);
}

/// Otherwise the target would never come behind the checks.
#[test]
fn seeds_of_remote_objects_have_rows_and_chunks_that_are_pulled() {
    let pulled = |name: &str| {
        let path = fuzz().join("corpus/remote").join(name);
        pulled_from(&fs::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}")))
    };
    for name in ["rows", "f32", "coarse", "coarse-row", "coarse-f32"] {
        assert_eq!(pulled(name), (0, 1), "{name}");
    }
    assert_eq!(pulled("label"), (1, 0));
    let wrong = [
        "infinite",
        "negative",
        "no-number",
        "group-0",
        "group-3",
        "group-huge",
        "group-in-1",
        "no-group-in-2",
        "version-3",
        "short",
        "empty",
        "layers-0",
        "layers-huge",
        "width-huge",
        "no-tokens",
        "other-tokens",
        "other-model",
        "path",
        "more",
        "unsealed",
        "label-version",
        "label-kind",
        "label-vocabulary",
        "card-cut",
        "card-none",
    ];
    for name in wrong {
        assert_eq!(pulled(name), (0, 0), "{name}");
    }
}
