//! Tests of references, environment, resolution and listing, on caches built in a temporary folder.
//! No test reads or changes the process environment.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const SHA_A: &str = "aaaaaaa111111111111111111111111111111111";
const SHA_B: &str = "aaaaaaa222222222222222222222222222222222";
const SHA_C: &str = "ccccccc333333333333333333333333333333333";

/// A cache on disk, in the layout that the hub's tools write.
struct Cache {
    folder: TempDir,
}

impl Cache {
    fn new() -> Self {
        Cache { folder: TempDir::new().unwrap() }
    }

    fn env(&self) -> HubEnv {
        HubEnv {
            cache: self.folder.path().to_owned(),
            endpoint: "https://huggingface.co".to_owned(),
            token: None,
            offline: false,
        }
    }

    fn repo(&self, id: &str) -> PathBuf {
        self.folder.path().join(RepoRef::parse(id).unwrap().cache_folder_name())
    }

    fn add_ref(&self, id: &str, name: &str, sha: &str) {
        let path = self.repo(id).join("refs").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, sha).unwrap();
    }

    /// A blob, and a relative link to it, as the hub's tools write them.
    fn add_file(&self, id: &str, sha: &str, name: &str, etag: &str, content: &[u8]) {
        let blobs = self.repo(id).join("blobs");
        let snapshot = self.repo(id).join("snapshots").join(sha);
        fs::create_dir_all(&blobs).unwrap();
        fs::create_dir_all(&snapshot).unwrap();
        fs::write(blobs.join(etag), content).unwrap();
        link(&Path::new("../../blobs").join(etag), &blobs.join(etag), &snapshot.join(name));
    }

    fn add_model(&self, id: &str, sha: &str) {
        self.add_file(id, sha, CONFIG_FILE, "config", b"{}");
        self.add_file(id, sha, SINGLE_WEIGHTS_FILE, "weights", b"0123456789");
    }

    fn snapshot(&self, id: &str, sha: &str) -> PathBuf {
        self.repo(id).join("snapshots").join(sha)
    }

    fn resolve(&self, text: &str) -> Result<PathBuf, HubError> {
        resolve(&ModelRef::parse(text).unwrap(), &self.env())
    }
}

#[cfg(unix)]
fn link(target: &Path, _blob: &Path, at: &Path) {
    std::os::unix::fs::symlink(target, at).unwrap();
}

#[cfg(not(unix))]
fn link(_target: &Path, blob: &Path, at: &Path) {
    fs::copy(blob, at).unwrap();
}

fn env_of(values: &[(&str, &str)]) -> Result<HubEnv, HubError> {
    let map: HashMap<String, OsString> =
        values.iter().map(|(k, v)| ((*k).to_owned(), OsString::from(v))).collect();
    HubEnv::from_lookup(|name| map.get(name).cloned())
}

#[test]
fn reference_to_a_repository() {
    let repo = RepoRef::parse("Qwen/Qwen3-0.6B").unwrap();
    assert_eq!((repo.id().as_str(), repo.revision()), ("Qwen/Qwen3-0.6B", "main"));
    assert_eq!(repo.cache_folder_name(), "models--Qwen--Qwen3-0.6B");
    assert_eq!(repo.to_string(), "Qwen/Qwen3-0.6B");

    let repo = RepoRef::parse("a_b/c.d-e@refs/pr/1").unwrap();
    assert_eq!((repo.id().as_str(), repo.revision()), ("a_b/c.d-e", "refs/pr/1"));
    assert_eq!(repo.to_string(), "a_b/c.d-e@refs/pr/1");
    assert!(RepoRef::parse(&format!("{}/{}", "o".repeat(96), "n".repeat(96))).is_ok());
}

#[test]
fn reference_to_a_folder() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_str().unwrap();
    assert_eq!(ModelRef::parse(path).unwrap(), ModelRef::Folder(folder.path().to_owned()));
    assert_eq!(
        resolve(&ModelRef::parse(path).unwrap(), &Cache::new().env()).unwrap(),
        folder.path()
    );

    let file = folder.path().join("model.gguf");
    fs::write(&file, b"x").unwrap();
    assert_eq!(ModelRef::parse(file.to_str().unwrap()).unwrap(), ModelRef::File(file.clone()));
    let other = folder.path().join("model.bin");
    fs::write(&other, b"x").unwrap();
    let error = ModelRef::parse(other.to_str().unwrap()).unwrap_err();
    assert!(matches!(error, HubError::NotAFolder { .. }), "{error}");

    for text in ["./nowhere", "/nowhere/at/all", "~/nowhere", "a/b/c", "a\\b"] {
        let error = ModelRef::parse(text).unwrap_err();
        assert!(matches!(error, HubError::FolderNotFound { .. }), "{text}: {error}");
    }
}

#[test]
fn reference_to_a_gguf_model() {
    let of = |text: &str| RepoRef::parse(text).unwrap();
    let tag = of("org/name:Q4_K_M@v1");
    assert_eq!(tag.pick(), Some(&Pick::Tag("Q4_K_M".to_owned())));
    assert_eq!((tag.id().as_str(), tag.revision()), ("org/name", "v1"));
    assert_eq!(tag.to_string(), "org/name:Q4_K_M@v1");
    let file = of("org/name/sub/a-Q8_0.gguf");
    assert_eq!(file.pick(), Some(&Pick::File("sub/a-Q8_0.gguf".to_owned())));
    assert_eq!(file.to_string(), "org/name/sub/a-Q8_0.gguf");
    assert!(matches!(ModelRef::parse("org/name/a.gguf").unwrap(), ModelRef::Repo(_)));
    for text in
        ["org/name:", "org/name:a b", "org/name/a.bin", "org/name/../a.gguf", "org/name//a.gguf"]
    {
        assert!(RepoRef::parse(text).is_err(), "{text}");
    }
    // One folder and a file: a path.
    let error = ModelRef::parse("folder/a.gguf").unwrap_err();
    assert!(matches!(error, HubError::FolderNotFound { .. }), "{error}");
}

#[test]
fn gguf_models_are_found_in_the_cache() {
    let cache = Cache::new();
    cache.add_ref("o/n", "main", SHA_A);
    for name in ["n-Q8_0.gguf", "n-BF16-00001-of-00002.gguf"] {
        cache.add_file("o/n", SHA_A, name, name, b"x");
    }
    let snapshot = cache.snapshot("o/n", SHA_A);
    assert_eq!(cache.resolve("o/n:q8_0").unwrap(), snapshot.join("n-Q8_0.gguf"));
    assert_eq!(cache.resolve("o/n/n-Q8_0.gguf").unwrap(), snapshot.join("n-Q8_0.gguf"));
    let error = cache.resolve("o/n:bf16").unwrap_err();
    assert!(
        error.to_string().contains("lacks n-BF16-00002-of-00002.gguf; run `weft pull o/n:bf16`"),
        "{error}"
    );
    let error = cache.resolve("o/n:Q4_K_M").unwrap_err();
    assert!(matches!(error, HubError::Incomplete { .. }), "{error}");
    let error = cache.resolve("o/n").unwrap_err();
    assert!(error.to_string().contains("several GGUF files fit"), "{error}");
    let listed = list(&cache.env()).unwrap();
    let revision = &listed[0].revisions[0];
    assert_eq!(revision.gguf, ["n-BF16-00001-of-00002.gguf", "n-Q8_0.gguf"]);
    assert_eq!(revision.missing, ["n-BF16-00002-of-00002.gguf"]);
    cache.add_file("o/n", SHA_A, "n-BF16-00002-of-00002.gguf", "2", b"x");
    let first = snapshot.join("n-BF16-00001-of-00002.gguf");
    assert_eq!(cache.resolve("o/n:BF16").unwrap(), first);
    assert!(list(&cache.env()).unwrap()[0].revisions[0].missing.is_empty());
}

#[test]
fn reference_that_breaks_a_rule() {
    let long = format!("o/{}", "n".repeat(97));
    let bad = [
        "",
        "name",
        "/name",
        "org/",
        "-org/name",
        "org/-name",
        ".org/name",
        "org/.name",
        "org/name.",
        "org/name-",
        "o..g/name",
        "org/na--me",
        "org/name.git",
        "org/na me",
        "org/näme",
        "org/na:m e",
        "org/..",
        "../name",
        "org/na\nme",
        &long,
        "a/b/c",
    ];
    for text in bad {
        let error = RepoRef::parse(text).unwrap_err();
        assert!(matches!(error, HubError::InvalidReference { .. }), "{text}: {error}");
        assert!(!error.to_string().contains('\n'), "{text}: raw control character in {error}");
    }
    let error = RepoRef::parse("qwen3").unwrap_err().to_string();
    assert!(error.contains("\"qwen3\"") && error.contains("organisation is missing"), "{error}");
}

#[test]
fn revision_that_breaks_a_rule() {
    let long = "r".repeat(201);
    let bad = [
        "", "..", "../x", "a/../b", "/etc", "a//b", "a/", "-x", ".hidden", "a/.b", "a\\b", "a b",
        "a:b", "a@b", "x~1", "a.", "a\0b", &long,
    ];
    for revision in bad {
        let error = RepoRef::parse(&format!("org/name@{revision}")).unwrap_err();
        assert!(matches!(error, HubError::InvalidRevision { .. }), "{revision}: {error}");
    }
}

proptest! {
    /// Every accepted reference stays inside the cache, and can be parsed from its folder's name.
    #[test]
    fn reference_stays_inside_the_cache(text in "[-a-zA-Z0-9._/@\\\\: ~]{0,40}") {
        if let Ok(repo) = RepoRef::parse(&text) {
            let name = repo.cache_folder_name();
            prop_assert!(is_plain_file_name(&name));
            prop_assert_eq!(RepoRef::from_cache_folder(&name).unwrap().id(), repo.id());
            let parts: Vec<_> = Path::new(repo.revision()).components().collect();
            prop_assert!(parts.iter().all(|c| matches!(c, std::path::Component::Normal(_))));
        }
    }
}

#[test]
fn environment_order_of_cache_roots() {
    let all = [
        ("HF_HUB_CACHE", "/cache"),
        ("HF_HOME", "/hf"),
        ("XDG_CACHE_HOME", "/xdg"),
        ("HOME", "/home/u"),
    ];
    let expected = ["/cache", "/hf/hub", "/xdg/huggingface/hub", "/home/u/.cache/huggingface/hub"];
    for (i, root) in expected.iter().enumerate() {
        assert_eq!(env_of(&all[i..]).unwrap().cache, Path::new(root));
    }
    assert!(matches!(env_of(&[]), Err(HubError::NoHome)));
    assert_eq!(
        env_of(&[("HF_HOME", ""), ("HOME", "/h")]).unwrap().cache.parent().unwrap(),
        Path::new("/h/.cache/huggingface"),
        "an empty value counts as unset"
    );
    assert_eq!(env_of(&[("HF_HOME", "~/x"), ("HOME", "/h")]).unwrap().cache, Path::new("/h/x/hub"));
}

#[test]
fn environment_endpoint_and_offline() {
    let env = env_of(&[("HOME", "/h")]).unwrap();
    assert_eq!((env.endpoint.as_str(), env.offline), ("https://huggingface.co", false));
    let env = env_of(&[("HOME", "/h"), ("HF_ENDPOINT", "http://mirror:8080/hub/")]).unwrap();
    assert_eq!(env.endpoint, "http://mirror:8080/hub");
    for bad in [
        "huggingface.co",
        "ftp://x",
        "https://",
        "https:///x",
        "http://a b",
        "http://a?b",
        "http://user:secret@host",
    ] {
        let error = env_of(&[("HOME", "/h"), ("HF_ENDPOINT", bad)]).unwrap_err();
        assert!(matches!(error, HubError::BadEndpoint { .. }), "{bad}: {error}");
    }
    for (value, offline) in [("1", true), ("TRUE", true), ("yes", true), ("0", false), ("", false)]
    {
        let env = env_of(&[("HOME", "/h"), ("HF_HUB_OFFLINE", value)]).unwrap();
        assert_eq!(env.offline, offline, "{value}");
    }
}

#[test]
fn environment_token() {
    let home = TempDir::new().unwrap();
    let path = home.path().to_str().unwrap();
    assert_eq!(env_of(&[("HF_HOME", path)]).unwrap().token, None);
    fs::write(home.path().join("token"), "hf_file\n").unwrap();
    assert_eq!(env_of(&[("HF_HOME", path)]).unwrap().token, Token::new("hf_file"));
    let env = env_of(&[("HF_HOME", path), ("HF_TOKEN", " hf_env ")]).unwrap();
    assert_eq!(env.token, Token::new("hf_env"));
    assert!(!format!("{env:?}").contains("hf_env"), "the token is shown in {env:?}");

    let error = env_of(&[("HF_HOME", path), ("HF_TOKEN", "hf\r\nX: y")]).unwrap_err();
    assert!(matches!(error, HubError::BadToken { .. }));
    assert!(!error.to_string().contains("X: y"), "the token is shown in {error}");
}

#[test]
fn resolve_by_ref_and_by_commit() {
    let cache = Cache::new();
    cache.add_model("org/name", SHA_A);
    cache.add_model("org/name", SHA_C);
    cache.add_ref("org/name", "main", SHA_A);
    cache.add_ref("org/name", "refs/pr/1", &format!("{SHA_C}\n"));
    let a = cache.snapshot("org/name", SHA_A);
    let c = cache.snapshot("org/name", SHA_C);

    assert_eq!(cache.resolve("org/name").unwrap(), a);
    assert_eq!(cache.resolve("org/name@refs/pr/1").unwrap(), c);
    assert_eq!(cache.resolve(&format!("org/name@{SHA_C}")).unwrap(), c);
    assert_eq!(cache.resolve("org/name@ccccccc").unwrap(), c);
    assert_eq!(cache.resolve("org/name@CCCCCCC3").unwrap(), c);

    cache.add_ref("org/name", "ccccccc", SHA_A);
    assert_eq!(cache.resolve("org/name@ccccccc").unwrap(), a, "a ref wins over a commit");
}

#[test]
fn resolve_says_what_is_not_there() {
    let cache = Cache::new();
    let error = cache.resolve("org/name@dev").unwrap_err();
    assert!(matches!(error, HubError::NotCached { .. }));
    let text = error.to_string();
    assert!(
        text.contains("models--org--name") && text.contains("`weft pull org/name@dev`"),
        "{text}"
    );

    cache.add_model("org/name", SHA_A);
    cache.add_ref("org/name", "main", SHA_A);
    cache.add_ref("org/name", "gone", SHA_B);
    for revision in ["dev", "cccccc", "ccccccc", SHA_C, "gone"] {
        let error = cache.resolve(&format!("org/name@{revision}")).unwrap_err();
        let HubError::RevisionNotCached { known, pull, .. } = &error else { panic!("{error}") };
        assert_eq!(known, &["main", SHA_A]);
        assert_eq!(pull, &format!("org/name@{revision}"));
    }

    cache.add_ref("org/name", "odd", "../../../etc");
    let error = cache.resolve("org/name@odd").unwrap_err();
    assert!(matches!(error, HubError::BadRef { .. }), "{error}");
}

#[test]
fn resolve_refuses_an_ambiguous_commit() {
    let cache = Cache::new();
    cache.add_model("org/name", SHA_A);
    cache.add_model("org/name", SHA_B);
    let error = cache.resolve("org/name@aaaaaaa").unwrap_err();
    let HubError::AmbiguousRevision { candidates, .. } = &error else { panic!("{error}") };
    assert_eq!(candidates, &[SHA_A, SHA_B]);
    assert_eq!(cache.resolve("org/name@aaaaaaa2").unwrap(), cache.snapshot("org/name", SHA_B));
}

#[test]
fn resolve_names_the_files_that_are_missing() {
    let cache = Cache::new();
    let missing_of = |cache: &Cache| match cache.resolve("org/name") {
        Err(HubError::Incomplete { missing, .. }) => missing,
        other => panic!("{other:?}"),
    };
    cache.add_ref("org/name", "main", SHA_A);
    fs::create_dir_all(cache.snapshot("org/name", SHA_A)).unwrap();
    assert_eq!(missing_of(&cache), [CONFIG_FILE, SINGLE_WEIGHTS_FILE]);

    let index =
        br#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-1.safetensors"}}"#;
    cache.add_file("org/name", SHA_A, CONFIG_FILE, "c", b"{}");
    cache.add_file("org/name", SHA_A, INDEX_FILE, "i", index);
    assert_eq!(missing_of(&cache), ["m-1.safetensors", "m-2.safetensors"]);

    cache.add_file("org/name", SHA_A, "m-1.safetensors", "s1", b"1");
    cache.add_file("org/name", SHA_A, "m-2.safetensors", "s2", b"2");
    assert!(cache.resolve("org/name").is_ok());
    fs::remove_file(cache.snapshot("org/name", SHA_A).join("m-2.safetensors")).unwrap();
    assert_eq!(missing_of(&cache), ["m-2.safetensors"]);
}

#[cfg(unix)]
#[test]
fn resolve_counts_a_dangling_link_as_missing() {
    let cache = Cache::new();
    cache.add_model("org/name", SHA_A);
    cache.add_ref("org/name", "main", SHA_A);
    fs::remove_file(cache.repo("org/name").join("blobs/weights")).unwrap();
    let error = cache.resolve("org/name").unwrap_err().to_string();
    assert!(error.contains("lacks model.safetensors;"), "{error}");
}

#[test]
fn index_that_cannot_be_used() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(INDEX_FILE);
    let bad = [
        "",
        "[]",
        "{}",
        r#"{"weight_map":{}}"#,
        r#"{"weight_map":{"a":1}}"#,
        r#"{"weight_map":{"a":"../x.safetensors"}}"#,
        r#"{"weight_map":{"a":"/x.safetensors"}}"#,
        r#"{"weight_map":{"a":"d\\x.safetensors"}}"#,
        r#"{"weight_map":{"a":"model.bin"}}"#,
    ];
    for text in bad {
        fs::write(&path, text).unwrap();
        let error = shards_of_index(&path).unwrap_err();
        assert!(matches!(error, HubError::BadIndex { .. }), "{text}: {error}");
    }
}

#[test]
fn list_counts_shared_blobs_once() {
    let cache = Cache::new();
    assert_eq!(list(&cache.env()).unwrap(), []);
    let nowhere = HubEnv { cache: cache.folder.path().join("nowhere"), ..cache.env() };
    assert_eq!(list(&nowhere).unwrap(), []);

    let before = SystemTime::now() - std::time::Duration::from_secs(5);
    cache.add_model("z/last", SHA_A);
    cache.add_model("org/name", SHA_A);
    cache.add_model("org/name", SHA_C);
    cache.add_file("org/name", SHA_C, "tokenizer.json", "tok", b"12345");
    fs::write(cache.repo("org/name").join("blobs/half.incomplete"), b"123").unwrap();
    cache.add_ref("org/name", "main", SHA_C);
    cache.add_ref("org/name", "refs/pr/1", SHA_C);
    for other in ["datasets--org--name", ".locks", "models--noorg", "models--a--..--b"] {
        fs::create_dir_all(cache.folder.path().join(other)).unwrap();
    }
    fs::write(cache.folder.path().join("models--a--file"), b"").unwrap();

    let models = list(&cache.env()).unwrap();
    assert_eq!(models.iter().map(|m| m.id.as_str()).collect::<Vec<_>>(), ["org/name", "z/last"]);
    let model = &models[0];
    assert!(model.last_modified.unwrap() >= before);
    let [a, c] = &model.revisions[..] else { panic!("{model:?}") };
    assert_eq!((a.sha.as_str(), c.sha.as_str()), (SHA_A, SHA_C));
    assert_eq!(
        (a.refs.len(), c.refs.as_slice()),
        (0, &["main".to_owned(), "refs/pr/1".to_owned()][..])
    );
    assert!(a.missing.is_empty() && c.missing.is_empty());
    if cfg!(unix) {
        assert_eq!((a.size_bytes, c.size_bytes), (12, 17));
        assert_eq!(model.size_bytes, 12 + 5 + 3);
    }
}

#[test]
fn list_shows_what_is_incomplete() {
    let cache = Cache::new();
    cache.add_file("org/name", SHA_A, CONFIG_FILE, "c", b"{}");
    cache.add_file("org/name", SHA_A, INDEX_FILE, "i", b"not json");
    let models = list(&cache.env()).unwrap();
    let missing = &models[0].revisions[0].missing;
    assert!(missing.len() == 1 && missing[0].contains("not a usable weight index"), "{missing:?}");
}
