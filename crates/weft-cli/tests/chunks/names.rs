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

#[test]
fn a_text_that_gets_another_name_says_which_it_had() {
    let home = Home::new();
    home.chunk(&["add", "nusonix.txt"]).ok();
    let renamed = "this text was called \"nusonix\"; it is now \"town\"";
    says(&home, &["add", "nusonix.txt", "--name", "town"], 0, &[renamed]);
    let again = home.chunk(&["add", "nusonix.txt", "--name", "town"]).ok();
    assert!(!again.stderr.contains("was called"), "{}", again.stderr);
    home.chunk(&["export", "town", "town.chunk"]).ok();
    let back = "this text was called \"town\"; it is now \"city\"";
    says(&home, &["import", "town.chunk", "--name", "city"], 0, &[back]);
}

/// A name goes on meaning the old text, and the user must learn that it does.
#[test]
fn an_edited_file_says_that_its_name_means_the_older_text() {
    let home = Home::new();
    home.write("hb.txt", "The gate opens at nine.");
    let id = home.chunk(&["add", "hb.txt"]).word();
    home.write("hb.txt", "The gate opens at ten.");
    let older = format!(
        "\"hb\" still means the older text {}…; `weft chunk rm hb` and add it again, or give --name",
        &id[..8]
    );
    says(&home, &["add", "hb.txt"], 0, &[&older]);
    says(&home, &["add", "hb.txt", "--name", "hb"], 2, &[&older]);
    home.chunk(&["rm", "hb"]).ok();
    home.chunk(&["add", "hb.txt"]).ok();
    assert!(home.chunk(&["show", "hb"]).ok().stdout.contains("ten"));
}

#[test]
fn the_hint_after_adding_a_text_fits_its_kind() {
    let home = Home::new();
    let system = ["add", "nusonix.txt", "--kind", "system", "--name", "brief"];
    says(&home, &system, 0, &["`weft ask --system brief \"your question\"`"]);
    says(&home, &["add", "kehujax.txt"], 0, &["`weft ask --context kehujax \"your question\"`"]);
    let asked = home.run(&["ask", "--context", "brief", "--", "Why?"]);
    assert_ne!(asked.code, 0);
    assert!(asked.stderr.contains("give it with --system"), "{}", asked.stderr);
}

#[test]
fn a_chunk_that_is_named_twice_is_removed_and_counted_once() {
    let home = Home::new();
    let id = home.chunk(&["add", "nusonix.txt"]).word();
    says(&home, &["rm", "nusonix", &id, "nusonix"], 0, &["removed 1 chunk,"]);
}

#[test]
fn a_text_in_another_encoding_says_where_and_how_to_convert_it() {
    let home = Home::new();
    std::fs::write(home.file("old.txt"), b"caf\xe9").unwrap();
    let reason = "is not UTF-8 text (byte 3 is 0xe9); convert it, as with iconv -f LATIN1 -t UTF-8";
    says(&home, &["add", "old.txt"], 2, &[reason]);
}
