//! `weft chunk export`, `import` and `key`: what goes to another machine, and what is believed
//! there.

use crate::home::{ANSWER, Home, SYSTEM, pieces, sources};

/// A home with a registered document, its rows after [`SYSTEM`], and a key.
fn sender() -> Home {
    let home = Home::new();
    home.chunk(&["add", "nusonix.txt", "--meta", "of=demo"]).ok();
    home.ask(&["nusonix"], &[]);
    home.chunk(&["key", "key"]).ok();
    home
}

/// Another user's home with the sender's key, and the path of a parcel in it.
fn receiver(sender: &Home) -> (Home, String) {
    let home = Home::new();
    std::fs::copy(sender.file("key"), home.file("key")).unwrap();
    let parcel = home.file("nusonix.chunk").to_str().unwrap().to_owned();
    (home, parcel)
}

/// Exports the document with its rows, signed.
fn export(home: &Home, parcel: &str) {
    let args = ["export", "nusonix", parcel, "--key", "key", "--system", SYSTEM];
    let said = home.chunk(&args).ok().stderr;
    assert!(said.contains("1 file of rows"), "{said}");
    assert_eq!(home.chunk(&args).code, 1, "no file is overwritten");
}

fn import(home: &Home, parcel: &str, more: &[&str]) -> String {
    home.chunk(&[&["import", parcel], more].concat()).ok().stderr
}

/// The chunk is there, its rows are not, and the user knows both.
fn has_text_alone(home: &Home, said: &str, why: &str) {
    assert!(said.contains(why) && said.contains("weft chunk warm nusonix"), "{said}");
    let shown = home.chunk(&["show", "nusonix", "--json"]).json();
    assert_eq!((&shown["metadata"]["of"], home.rows().len()), (&"demo".into(), 0));
}

#[test]
fn signed_rows_answer_elsewhere_with_the_same_bits() {
    let home = sender();
    let (other, parcel) = receiver(&home);
    export(&home, &parcel);
    let said = import(&other, &parcel, &["--key", "key", "--system", SYSTEM]);
    assert!(said.contains("1 file of rows imported") && !said.contains("warm"), "{said}");
    let shown = other.chunk(&["show", "nusonix", "--json"]).json();
    let files = &shown["rows_on_disk"]["files"];
    assert_eq!((&shown["metadata"]["of"], files), (&"demo".into(), &1.into()));
    let answer = other.ask(&["nusonix"], &["--verify"]);
    assert_eq!(sources(&answer), ["computed", "disk", "computed"], "not the system's rows");
    let document = pieces(&answer).remove(1);
    assert!(document.1 > 0 && document.1 == document.2, "all tokens are kept: {document:?}");
    assert_eq!((&answer["text"], &answer["verification"]["exact"]), (&ANSWER.into(), &true.into()));
}

#[test]
fn rows_after_a_registered_system_prompt_need_no_flag() {
    let home = sender();
    let (other, parcel) = receiver(&home);
    for home in [&home, &other] {
        home.feed(&["chunk", "add", "-", "--kind", "system"], SYSTEM).ok();
    }
    let said = home.run_with(&["chunk", "export", "nusonix", &parcel], ("WEFT_KEY", "key")).ok();
    assert!(said.stderr.contains("1 file of rows"), "{}", said.stderr);
    other.write("config.toml", "key = \"key\"");
    let said = other.run_with(&["chunk", "import", &parcel], ("WEFT_CONFIG", "config.toml")).ok();
    assert!(said.stderr.contains("1 file of rows imported"), "{}", said.stderr);
}

#[test]
fn without_a_signature_of_a_trusted_key_only_the_text_is_imported() {
    let home = sender();
    let (other, parcel) = receiver(&home);
    export(&home, &parcel);
    let key = ["--system", SYSTEM, "--key"];
    has_text_alone(&other, &import(&other, &parcel, &key[..2]), "you gave no key");
    other.chunk(&["key", "another"]).ok();
    let said = import(&other, &parcel, &[&key[..], &["another"]].concat());
    has_text_alone(&other, &said, "your key has not signed it");
    // The system prompt is not known here, so nothing says that the chunk can stand there.
    let said = import(&other, &parcel, &["--key", "key"]);
    has_text_alone(&other, &said, "--system");
    let unsigned = other.file("unsigned.chunk").to_str().unwrap().to_owned();
    let said = home.chunk(&["export", "nusonix", &unsigned]).ok().stderr;
    assert!(said.contains("without rows") && said.contains("--key"), "{said}");
    has_text_alone(&other, &import(&other, &unsigned, &["--key", "key"]), "computed here");
    // Somebody puts the rows back.
    let [signed, text] = [&parcel, &unsigned].map(|path| std::fs::read(path).unwrap());
    let end = signed.iter().position(|byte| *byte == b'\n').unwrap();
    std::fs::write(&unsigned, [&text, &signed[end + 1..]].concat()).unwrap();
    let said = import(&other, &unsigned, &[&key[..], &["key"]].concat());
    has_text_alone(&other, &said, "it is not signed");
    assert_eq!(other.ask(&["nusonix"], &[])["text"], ANSWER);
}

#[test]
fn rows_of_another_device_are_refused_and_the_text_is_not() {
    let home = sender();
    let (other, parcel) = receiver(&home);
    export(&home, &parcel);
    let key = ["--key", "key", "--system", SYSTEM];
    // The reference device rounds differently, so its rows do not fit.
    let said = import(&other, &parcel, &[&key[..], &["--kernels", "reference"]].concat());
    has_text_alone(&other, &said, "another model");
    // A flipped bit in the rows is detected, and only the rows are lost.
    let mut bytes = std::fs::read(&parcel).unwrap();
    let last = bytes.len() - 7;
    bytes[last] ^= 1;
    std::fs::write(&parcel, &bytes).unwrap();
    has_text_alone(&other, &import(&other, &parcel, &key), "signature is wrong");
    let text = String::from_utf8_lossy(&bytes[..60]).replace("weft-chunk", "weft-other");
    std::fs::write(&parcel, text).unwrap();
    assert_eq!(other.chunk(&["import", &parcel]).code, 1);
}

#[test]
fn a_parcel_that_is_cut_off_says_so() {
    let home = sender();
    home.chunk(&["export", "nusonix", "whole.chunk"]).ok();
    let whole = std::fs::read(home.file("whole.chunk")).unwrap();
    for length in [0, 1, whole.len() / 2, whole.len() - 1] {
        std::fs::write(home.file("cut.chunk"), &whole[..length]).unwrap();
        let refused = home.chunk(&["import", "cut.chunk"]);
        assert_eq!(refused.code, 1, "{length}");
        let says = "the file is cut off; export it again";
        assert!(refused.stderr.contains(says), "{length}: {}", refused.stderr);
    }
}

#[test]
fn a_name_that_is_taken_is_refused() {
    let home = sender();
    let (other, parcel) = receiver(&home);
    home.chunk(&["export", "nusonix", &parcel]).ok();
    other.chunk(&["add", "kehujax.txt", "--name", "nusonix"]).ok();
    let taken = other.chunk(&["import", &parcel]);
    assert_eq!(taken.code, 2);
    assert!(taken.stderr.contains("--name"), "{}", taken.stderr);
    import(&other, &parcel, &["--name", "town"]);
    let listed = other.chunk(&["list", "--json"]).json();
    assert_eq!([&listed[0]["name"], &listed[1]["name"]], ["nusonix", "town"]);
}

#[test]
fn a_key_is_new_and_secret() {
    let home = sender();
    let written = std::fs::read_to_string(home.file("key")).unwrap();
    assert_eq!(written.trim_end().len(), 64);
    let again = home.chunk(&["key", "key"]);
    assert_eq!(again.code, 1);
    assert_eq!(std::fs::read_to_string(home.file("key")).unwrap(), written);
    let absent = home.chunk(&["export", "nusonix", "a.chunk", "--key", "absent"]);
    assert!(absent.code != 0 && absent.stderr.contains("--key absent"), "{}", absent.stderr);
    assert!(!home.file("a.chunk").exists());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(home.file("key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::set_permissions(home.file("key"), PermissionsExt::from_mode(0o644)).unwrap();
        let open = home.chunk(&["export", "nusonix", "a.chunk", "--key", "key"]);
        assert!(open.code != 0 && open.stderr.contains("chmod 600"), "{}", open.stderr);
    }
}
