//! The words of `weft ask [MODEL] [FILE]... QUESTION [FILE]...`: which is the model, which are
//! documents, and which the question. A word that looks like a file or a model and is not there is
//! an error, never a part of the question.

use std::path::Path;

use crate::error::CliError;
use crate::models;

/// The name of stdin among documents.
pub(super) const STDIN: &str = "-";

/// Longer endings are rarely those of files.
const MAX_ENDING: usize = 5;

/// The words of a command line, sorted by meaning.
#[derive(Debug, PartialEq)]
pub(super) struct Words<'a> {
    pub(super) model: Option<&'a str>,
    pub(super) files: Vec<&'a str>,
    pub(super) question: String,
}

impl<'a> Words<'a> {
    /// Sorts words. If a flag names the model, no word does.
    pub(super) fn sort(words: &'a [String], model_by_flag: bool) -> Result<Self, CliError> {
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        let has_model = !model_by_flag && is_model(words[0]);
        let model = has_model.then(|| words.remove(0));
        let files = words.iter().copied().filter(|word| is_document(word)).collect();
        let is_text = |word: &&str| !is_document(word);
        let question = match words.iter().position(is_text) {
            None => return Err(no_question(model, &words)),
            Some(first) => {
                let last = words.iter().rposition(is_text).unwrap_or(first);
                &words[first..=last]
            }
        };
        check(question, words.first().filter(|_| !model_by_flag && !has_model))?;
        Ok(Self { model, files, question: question.join(" ") })
    }
}

/// Files, pipes (`<(command)`) and stdin.
fn is_document(word: &str) -> bool {
    let path = Path::new(word);
    word == STDIN || (path.exists() && !path.is_dir())
}

/// Whether the first word is a model. `docs/notes.txt` could be one on the hub, but is rather a
/// file with a typing error.
fn is_model(word: &str) -> bool {
    let is_folder = Path::new(word).join("config.json").exists();
    let in_folder = Path::new(word)
        .parent()
        .is_some_and(|folder| !folder.as_os_str().is_empty() && folder.is_dir())
        && models::nearest(word).is_none();
    is_folder
        || (models::is_model(word) && !Path::new(word).is_dir() && !in_folder && !has_ending(word))
}

/// Checks the words of a question: one text in quotes, or several words without any file's or
/// model's name among them. `first` is the word where a model could stand.
fn check(question: &[&str], first: Option<&&str>) -> Result<(), CliError> {
    let mut texts = question.iter().copied().filter(|word| !is_document(word)).collect::<Vec<_>>();
    let is_quoted = |word: &str| word.contains(char::is_whitespace);
    let n_quoted = texts.iter().filter(|word| is_quoted(word)).count();
    if n_quoted > 1 {
        texts.retain(|word| is_quoted(word));
        return usage(format!(
            "which is the question: \"{}\"? Give one text in quotes; the others are not files",
            texts.join("\" or \"")
        ));
    }
    for word in texts.iter().copied().filter(|word| !is_quoted(word)) {
        let may_be_model = first == Some(&word) && !has_ending(word);
        let near = if may_be_model { models::nearest(word) } else { None };
        if n_quoted == 1 || looks_like_path(word) || near.is_some() {
            let what = if may_be_model { "neither a file nor a model" } else { "not a file" };
            return Err(missing(word, what, near));
        }
    }
    match question.iter().find(|word| is_document(word)) {
        None => Ok(()),
        Some(file) => usage(format!(
            "the document {file} stands between the words of the question; put the question into \
             quotes"
        )),
    }
}

fn looks_like_path(word: &str) -> bool {
    !word.ends_with('?')
        && (word.contains(['/', '\\']) || word.starts_with(['~', '@']) || has_ending(word))
}

/// Whether a word ends like `.txt`. `Qwen3-0.6B` does not: its ending begins with a digit.
fn has_ending(word: &str) -> bool {
    let ending = Path::new(word).extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    ending.len() <= MAX_ENDING
        && ending.starts_with(|c: char| c.is_ascii_alphabetic())
        && ending.chars().all(|c| c.is_ascii_alphanumeric())
}

/// The error for a word that is not what it seems to be.
fn missing(word: &str, what: &str, near: Option<String>) -> CliError {
    if Path::new(word).is_dir() {
        return CliError::Usage(format!(
            "{word:?} is a folder, and a document is a file; name its files, as {}/*",
            word.trim_end_matches('/')
        ));
    }
    let next = match near.or_else(|| nearest_file(word)) {
        Some(near) => format!("did you mean {near}?"),
        None if models::is_model(word) => format!(
            "check the name, or give `--context {word}` for a registered chunk, `-m {word}` for a \
             model."
        ),
        None => format!(
            "check the name, or give `--context {word}` for a registered chunk. A model has a \
             name like qwen3:0.6b or {}.",
            models::SMALL
        ),
    };
    CliError::Usage(format!(
        "{word:?} is {what}: {next} If it is part of the question, put the whole question into \
         quotes"
    ))
}

/// The file beside a missing one whose name is most like its own.
fn nearest_file(word: &str) -> Option<String> {
    let path = Path::new(word);
    let (folder, name) = (path.parent()?, path.file_name()?.to_str()?);
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let names = std::fs::read_dir(here).ok()?.filter_map(|entry| {
        let entry = entry.ok().filter(|entry| entry.path().is_file())?;
        entry.file_name().into_string().ok()
    });
    let near = models::nearest_of(name, names)?;
    Some(folder.join(near).display().to_string())
}

fn no_question(model: Option<&str>, files: &[&str]) -> CliError {
    let words: Vec<&str> = model.into_iter().chain(files.iter().copied()).collect();
    let words = words.join(" ");
    CliError::Usage(format!("there is no question; type `weft ask {words} \"your question\"`"))
}

fn usage<T>(text: String) -> Result<T, CliError> {
    Err(CliError::Usage(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sort(words: &[&str]) -> Result<(Option<String>, Vec<String>, String), String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let sorted = Words::sort(&words, false).map_err(|error| error.to_string())?;
        let files = sorted.files.into_iter().map(str::to_owned).collect();
        Ok((sorted.model.map(str::to_owned), files, sorted.question))
    }

    #[test]
    fn files_stand_on_either_side_and_the_model_first() {
        // Tests run in the folder of their crate.
        let file = "Cargo.toml";
        let of = |model: Option<&str>, files: &[&str], question: &str| {
            let files = files.iter().map(|file| (*file).to_owned()).collect();
            Ok((model.map(str::to_owned), files, question.to_owned()))
        };
        assert_eq!(sort(&["Who is it?"]), of(None, &[], "Who is it?"));
        assert_eq!(sort(&["hello"]), of(None, &[], "hello"));
        assert_eq!(sort(&["and/or?"]), of(None, &[], "and/or?"));
        assert_eq!(sort(&["Who", "is", "it?"]), of(None, &[], "Who is it?"));
        assert_eq!(sort(&[file, "Who?"]), of(None, &[file], "Who?"));
        assert_eq!(sort(&["Who is it?", file]), of(None, &[file], "Who is it?"));
        assert_eq!(sort(&[file, "Who?", "build.rs"]), of(None, &[file, "build.rs"], "Who?"));
        assert_eq!(sort(&["-", "Who?"]), of(None, &["-"], "Who?"));
        let model = "Qwen/Qwen3-0.6B";
        assert_eq!(sort(&[model, file, "Who?"]), of(Some(model), &[file], "Who?"));
        assert_eq!(sort(&["qwen3:0.6b", "Who?"]), of(Some("qwen3:0.6b"), &[], "Who?"));
        assert_eq!(sort(&["weft-tiny", "Who?"]), of(Some("weft-tiny"), &[], "Who?"));
    }

    #[test]
    fn a_word_that_is_not_there_is_never_part_of_the_question() {
        for (words, says) in [
            (&["Crago.toml", "Who?"][..], "Cargo.toml"),
            (&["src/mian.rs", "Who is it?"], "src/main.rs"),
            (&["Who is it?", "absent.txt"], "absent.txt"),
            (&["absent.txt"], "absent.txt"),
            (&["@absent", "Who?"], "\"@absent\" is neither a file"),
            (&["minutes", "Who is it?"], "--context minutes"),
            (&["Cargo", "build.rs", "Who is it?"], "did you mean Cargo.toml?"),
            (&["mistral:7b", "Cargo.toml", "Who is it?"], "a name like qwen3:0.6b"),
            (&["llama3.2", "Who is it?"], "meta-llama/Llama-3.2-1B-Instruct"),
            (&["Cargo.toml", "Qwen/Qwen3-0.6B", "Who?"], "`-m Qwen/Qwen3-0.6B` for a model"),
            (&["src", "Who is it?"], "src/*"),
            (&["My Notes.txt", "Who is it?"], "\"My Notes.txt\" or \"Who is it?\""),
            (&["What", "is", "Cargo.toml", "for"], "between the words"),
            (&["Cargo.toml"], "there is no question"),
            (&["Qwen/Qwen3-0.6B"], "`weft ask Qwen/Qwen3-0.6B \"your question\"`"),
        ] {
            let error = sort(words).unwrap_err();
            assert!(error.contains(says), "{words:?}: {error}");
        }
    }
}
