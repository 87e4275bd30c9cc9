//! Names of registered texts: what becomes of one that changes, and of one that is taken.

use crate::home::Home;

/// Runs `weft chunk …`, which must end with `code` and say all of `says` on stderr.
fn says(home: &Home, args: &[&str], code: i32, says: &[&str]) {
    let ran = home.chunk(args);
    assert_eq!(ran.code, code, "{args:?}: {}", ran.stderr);
    for part in says {
        assert!(ran.stderr.contains(part), "{args:?}: `{}` lacks `{part}`", ran.stderr);
    }
}

/// Servers have registered texts under any name.
#[test]
fn an_empty_word_is_no_chunk_and_two_of_a_name_are_told_apart() {
    let home = Home::new();
    let [a, b] = ["nusonix.txt", "kehujax.txt"].map(|file| home.chunk(&["add", file]).word());
    let shelf = std::fs::read_dir(home.file(".local/share/weft/chunks")).unwrap();
    let shelf = shelf.map(|entry| entry.unwrap().path()).next().unwrap();
    let rename = |name: &str| {
        for id in [&a, &b] {
            let file = shelf.join(format!("{id}.json"));
            let mut card: serde_json::Value =
                serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            card["metadata"]["name"] = name.into();
            std::fs::write(&file, card.to_string()).unwrap();
        }
    };
    rename("same");
    let mut ids = [&a[..8], &b[..8]];
    ids.sort_unstable();
    let both = format!("\"same\" is the name of {}…, {}…; give an id", ids[0], ids[1]);
    says(&home, &["show", "same"], 1, &[&both]);
    rename("");
    says(&home, &["rm", "--", ""], 2, &["no chunk has the name \"\""]);
    assert_eq!(home.chunk(&["list", "--json"]).json().as_array().unwrap().len(), 2);
}
