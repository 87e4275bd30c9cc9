//! The sources of a flag's value: the flag itself, else `WEFT_*` in the environment, else the
//! config file, else the default.
//!
//! Every long flag has the same name in all of them: `--ctx-size`, `WEFT_CTX_SIZE`, `ctx-size =
//! "32k"`. A flag that may be given several times takes a list in the file. The config file is
//! `$WEFT_CONFIG`, or `weft/config.toml` in the user's configuration folder.

mod elsewhere;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser};

use crate::args::{ChunkCommand, Cli, Command};
use crate::commands::sampling;
use crate::error::CliError;
use crate::models;
use crate::terminal;

pub(crate) use self::elsewhere::with_place;

/// Commands that must work with a broken config file: they explain or repair it.
const WITHOUT_FILE: [&str; 3] = ["config", "help", "completions"];
/// Flags that must work too.
const HELP: [&str; 4] = ["-h", "--help", "-V", "--version"];

/// The beginning of all variables.
const PREFIX: &str = "WEFT_";
/// Variables that are no flags.
const OTHER_VARIABLES: [&str; 4] =
    ["WEFT_CONFIG", weft_cpu::ISA_VARIABLE, "WEFT_KERNEL_CACHE", "WEFT_KERNEL_SOURCES"];

/// Parses the command line, the environment and the config file.
pub(crate) fn parse() -> Result<Cli, CliError> {
    let args: Vec<OsString> = std::env::args_os().collect();
    let is_free = args.get(1).is_some_and(|first| WITHOUT_FILE.iter().any(|name| first == name))
        || args
            .iter()
            .take_while(|arg| *arg != "--")
            .any(|arg| HELP.iter().any(|help| arg == help));
    let file = if is_free { Vec::new() } else { read_file()? };
    for (set, name) in aliased(std::env::vars_os().map(|(name, _)| name)) {
        terminal::warn(&format!("{set} is set and has no effect; its name is {name}"));
    }
    for (set, near) in misspelt(std::env::vars_os().map(|(name, _)| name)) {
        terminal::warn(&format!(
            "{set} is set, but weft has no such variable; did you mean {near}?"
        ));
    }
    parse_from(args, &file, &|name| std::env::var_os(name))
}

/// The key that a variable of weft would set.
fn key_of_variable(name: &str) -> Option<String> {
    Some(name.strip_prefix(PREFIX)?.to_ascii_lowercase().replace('_', "-"))
}

/// Variables of a flag's other names, each with the right one.
fn aliased(names: impl Iterator<Item = OsString>) -> Vec<(String, String)> {
    let keys = keys();
    let right = |name: String| {
        let right = variable(key_of_alias(&key_of_variable(&name)?, &keys)?);
        Some((name, right))
    };
    names.filter_map(|name| name.into_string().ok()).filter_map(right).collect()
}

/// The flag that has this other name; none if the name is that of a flag.
fn key_of_alias<'k>(name: &str, keys: &'k BTreeMap<String, Vec<clap::Arg>>) -> Option<&'k String> {
    let has_it = |arg: &clap::Arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        aliases.contains(&name)
    };
    let found = keys.iter().find(|(_, args)| args.iter().any(has_it));
    found.filter(|_| !keys.contains_key(name)).map(|(key, _)| key)
}

/// Variables that are nearly those of a flag, each with the right one. Others, such as those of
/// scripts around weft, are none of its business.
fn misspelt(names: impl Iterator<Item = OsString>) -> Vec<(String, String)> {
    const MOST_MORE_LETTERS: usize = 2;
    let keys = keys();
    let is_alias = |key: &str| key_of_alias(key, &keys).is_some();
    let mut known: Vec<String> = keys.keys().cloned().collect();
    known.extend(OTHER_VARIABLES.into_iter().filter_map(key_of_variable));
    let near = |name: String| {
        let key = key_of_variable(&name).filter(|key| !known.contains(key) && !is_alias(key))?;
        let near = models::nearest_of(&key, known.iter().cloned())?;
        let is_near = near.len().abs_diff(key.len()) <= MOST_MORE_LETTERS;
        is_near.then(|| (name, variable(&near)))
    };
    names.filter_map(|name| name.into_string().ok()).filter_map(near).collect()
}

/// The settings of the config file; none if there is no file.
fn read_file() -> Result<Vec<Setting>, CliError> {
    match config_file() {
        // A file that the user names must exist.
        Some((path, is_named)) if is_named || path.exists() => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(&path)
                .map_err(|error| CliError::Usage(format!("{name}: {error}")))?;
            read(&text).map_err(|reason| CliError::Usage(format!("{name}: {reason}")))
        }
        _ => Ok(Vec::new()),
    }
}

/// A flag's long name and its values in the config file; a list may have several.
pub(crate) type Setting = (String, Vec<String>);

/// Looks up an environment variable.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

fn parse_from(args: Vec<OsString>, file: &[Setting], lookup: Lookup<'_>) -> Result<Cli, CliError> {
    let mut command = Cli::command();
    command.build();
    let keys = keys();
    if let Some((key, _)) = file.iter().find(|(key, _)| !keys.contains_key(key)) {
        return Err(CliError::Usage(format!("the config file sets {}", unknown(key))));
    }
    // The last of a repeated flag counts, so that an alias can be overridden.
    let command = layer(command, file, lookup);
    let matches = command.clone().try_get_matches_from(args);
    let matches = matches.or_else(|error| match wrong_setting(&error, file, lookup) {
        Some(reason) => Err(CliError::Usage(reason)),
        None => error.exit(),
    })?;
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let (Some(command), Some((_, flags))) = (&mut cli.command, matches.subcommand()) {
        settle(command, flags);
    }
    warn_of_idle_flags(&matches);
    elsewhere::keep(elsewhere::find(&command, &matches, (file, lookup)));
    Ok(cli)
}

/// Adds all sources to the flags of a command and of its subcommands.
fn layer(command: clap::Command, file: &[Setting], lookup: Lookup<'_>) -> clap::Command {
    command
        .args_override_self(true)
        .mut_args(|arg| layered(arg, file, lookup))
        .mut_subcommands(|sub| layer(sub, file, lookup))
}

/// The reason of an error that a value in the environment or the file caused.
fn wrong_setting(error: &clap::Error, file: &[Setting], lookup: Lookup<'_>) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    if !matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) {
        return None;
    }
    let (arg, value) = (text(ContextKind::InvalidArg)?, text(ContextKind::InvalidValue)?);
    let key = arg.strip_prefix("--")?.split(' ').next()?;
    let variable = variable(key);
    let source = if lookup(&variable).is_some_and(|set| set == value) {
        variable
    } else {
        let set = file.iter().find(|(name, _)| name == key)?;
        set.1.iter().any(|set| set == value).then(|| format!("the config file's `{key}`"))?
    };
    let reason = error.to_string();
    let reason = reason.lines().next().unwrap_or_default().trim_start_matches("error: ");
    Some(format!("{source}: {reason}"))
}

/// Settles everything that depends on a value's source.
fn settle(command: &mut Command, flags: &ArgMatches) {
    let by_flag = |name: &str| flags.value_source(name) == Some(ValueSource::CommandLine);
    let prompt = match command {
        Command::Run(args) => {
            args.model_by_flag = by_flag("model");
            args.model.draft = args.speculate.draft.take();
            args.cache.remote = args.remote.clone();
            &mut args.prompt
        }
        Command::Ask(args) | Command::Verify(args) => {
            args.model_by_flag = by_flag("model");
            args.model.draft = args.speculate.draft.take();
            args.cache.remote = args.remote.clone();
            &mut args.prompt
        }
        Command::Chat(args) => {
            args.model.draft = args.speculate.draft.take();
            args.cache.remote = args.remote.clone();
            &mut args.prompt
        }
        Command::Serve(args) => {
            args.model.draft = args.speculate.draft.take();
            args.cache.remote = args.remote.clone();
            return;
        }
        Command::Chunk(args) => {
            if let ChunkCommand::Warm(warm) = &mut args.command {
                warm.cache.remote = warm.remote.clone();
            }
            return;
        }
        _ => return,
    };
    // If two switches contradict each other, the one on the command line wins.
    prompt.think &= !by_flag("no_think");
    prompt.no_think &= !by_flag("think");
}

/// Warns of flags on the command line that do nothing without another.
fn warn_of_idle_flags(flags: &ArgMatches) {
    if let Some((_, flags)) = flags.subcommand() {
        return warn_of_idle_flags(flags);
    }
    let is_set = |name: &str| flags.ids().any(|id| id == name);
    let by_flag =
        |name: &str| is_set(name) && flags.value_source(name) == Some(ValueSource::CommandLine);
    let idle = [("remote_key", "--remote-key"), ("remote_unsigned", "--remote-unsigned")];
    for (_, flag) in idle.into_iter().filter(|(name, _)| by_flag(name) && !is_set("remote")) {
        terminal::warn(&format!("{flag} does nothing without --remote"));
    }
}

/// Adds the value of the environment, or else of the config file, to a flag.
fn layered(arg: clap::Arg, file: &[Setting], lookup: Lookup<'_>) -> clap::Arg {
    let Some(key) = settable(&arg) else { return arg };
    let mut arg = arg;
    if is_switch(&arg) {
        // For `WEFT_QUIET=1`.
        arg = arg.value_parser(parse_switch);
    } else if arg.get_long().is_some() && !is_value_optional(&arg) {
        // So that -1 is a value, and the flag's own error says what it takes.
        arg = arg.allow_negative_numbers(true);
    }
    let in_file = || {
        let (_, values) = file.iter().find(|(name, _)| *name == key)?;
        Some(values.iter().map(OsString::from).collect())
    };
    // An empty variable is as good as none, but an empty key must be refused, not ignored.
    let counts = |value: &OsString| !value.is_empty() || key == "api-key";
    let set = lookup(&variable(&key)).filter(counts);
    match set.map(|value| vec![value]).or_else(in_file) {
        // Such a flag selects something by being there; only its value comes from elsewhere.
        Some(values) if is_value_optional(&arg) => arg.default_missing_values_os(values),
        Some(values) => arg.required(false).default_values(values),
        None => arg,
    }
}

fn is_switch(arg: &clap::Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// What switches a flag on or off in the environment and in a file.
fn parse_switch(word: &str) -> Result<bool, String> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(format!("{word:?} is not true or false")),
    }
}

/// Whether a flag may stand without its value.
fn is_value_optional(arg: &clap::Arg) -> bool {
    arg.get_num_args().is_some_and(|range| (range.min_values(), range.max_values()) == (0, 1))
}

/// Whether a flag may be given several times, or takes a list.
fn is_list(arg: &clap::Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append) || arg.get_value_delimiter().is_some()
}

/// The environment variable of a flag.
pub(crate) fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_ascii_uppercase().replace('-', "_"))
}

/// Flags that only a command line may set: they say what one call is about. Above all, a line in a
/// file must never select what is deleted, or agree to it.
pub(crate) const OF_ONE_CALL: [&str; 20] = [
    "help",
    "version",
    "all",
    "yes",
    "kind",
    "older-than",
    "meta",
    "name",
    "other-models",
    "max-size",
    "file",
    "out",
    "text",
    "base",
    "save-base",
    "quantize-a",
    "quantize-b",
    "windows",
    "form",
    "force",
];

/// `compare --ctx-size`: a part of what is measured, not the room that other commands give a model.
const WINDOW: &str = "window";

/// The long name of a flag that the environment and a file may set.
fn settable(arg: &clap::Arg) -> Option<String> {
    let long = arg.get_long()?;
    (!OF_ONE_CALL.contains(&long) && arg.get_id() != WINDOW).then(|| long.to_owned())
}

/// All flags that can be set, each with its forms in different commands.
fn keys() -> BTreeMap<String, Vec<clap::Arg>> {
    fn add(command: &clap::Command, keys: &mut BTreeMap<String, Vec<clap::Arg>>) {
        for arg in command.get_arguments() {
            if let Some(key) = settable(arg) {
                keys.entry(key).or_default().push(arg.clone());
            }
        }
        command.get_subcommands().for_each(|sub| add(sub, keys));
    }
    let mut keys = BTreeMap::new();
    add(&Cli::command(), &mut keys);
    keys
}

/// The names of all flags that can be set.
pub(crate) fn known_keys() -> impl Iterator<Item = String> {
    keys().into_keys()
}

/// Describes a key that is not a flag, with the nearest one.
fn unknown(key: &str) -> String {
    let keys = keys();
    let near = || models::nearest_of(key, keys.keys().cloned());
    let next = match key_of_alias(key, &keys).cloned().or_else(near) {
        Some(near) => format!("did you mean `{near}`?"),
        None if OF_ONE_CALL.contains(&key) => "give it on the command line".to_owned(),
        None => "`weft help ask` and `weft help serve` list the flags".to_owned(),
    };
    format!("`{key}`, which is not a flag that can be set; {next}")
}

/// Checks a setting as the command line would.
pub(crate) fn check(key: &str, values: &[String]) -> Result<(), CliError> {
    let keys = keys();
    let Some(args) = keys.get(key) else {
        return Err(CliError::Usage(format!("you gave {}", unknown(key))));
    };
    if values.len() > 1 && !args.iter().any(is_list) {
        return Err(CliError::Usage(format!("`{key}` takes one value, not {}", values.len())));
    }
    values.iter().try_for_each(|value| {
        let taken = args.iter().try_for_each(|arg| accepts(arg, value));
        taken.map_err(|reason| CliError::Usage(format!("`{key}`: {reason}")))
    })?;
    if key == "api-key" && values.iter().any(|value| value.trim().is_empty()) {
        return Err(CliError::Usage(format!("`{key}` is empty; give a key, or unset it")));
    }
    let flags = values.iter().map(|value| format!("--{key}={value}"));
    let line = ["weft", "run"].map(str::to_owned).into_iter().chain(flags);
    match Cli::try_parse_from(line) {
        Ok(Cli { command: Some(Command::Run(run)), .. }) => sampling::check(&run.sampling),
        // A switch, or a flag of other commands, whose values need no more than the check above.
        _ => Ok(()),
    }
}

/// Whether a flag takes a value.
fn accepts(arg: &clap::Arg, value: &str) -> Result<(), String> {
    if is_switch(arg) {
        return parse_switch(value).map(drop);
    }
    let mut alone = clap::Arg::new("value")
        .long("value")
        .allow_hyphen_values(true)
        .value_parser(arg.get_value_parser().clone());
    if let Some(delimiter) = arg.get_value_delimiter() {
        alone = alone.value_delimiter(delimiter);
    }
    let command = clap::Command::new("weft").no_binary_name(true).arg(alone);
    match command.try_get_matches_from([format!("--value={value}")]) {
        Ok(_) => Ok(()),
        Err(error) => {
            let text = error.to_string();
            let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
            let reason = lines.iter().take_while(|line| !line.starts_with("For more")).copied();
            let reason = reason.collect::<Vec<_>>().join(" ").replace(" for '--value <value>'", "");
            Err(reason.trim_start_matches("error: ").to_owned())
        }
    }
}

/// The config file, and whether the user named it.
pub(crate) fn config_file() -> Option<(PathBuf, bool)> {
    if let Some(named) = path_variable("WEFT_CONFIG") {
        return Some((named, true));
    }
    Some((user_folder("XDG_CONFIG_HOME", ".config")?.join("config.toml"), false))
}

/// weft's folder of a kind: below the folder in the variable, else at the usual place below the
/// home folder.
pub(crate) fn user_folder(variable: &str, usual: &str) -> Option<PathBuf> {
    let below_home = || Some(path_variable("HOME")?.join(usual));
    Some(path_variable(variable).or_else(below_home)?.join("weft"))
}

pub(crate) fn path_variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Reads the settings from the text of a config file.
pub(crate) fn read(text: &str) -> Result<Vec<Setting>, String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let one = |value: &toml::Value| match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(flag) => Some(flag.to_string()),
        _ => None,
    };
    table
        .into_iter()
        .map(|(key, value)| {
            let values = match &value {
                toml::Value::Array(list) => list.iter().map(one).collect(),
                value => one(value).map(|value| vec![value]),
            };
            match values {
                Some(values) if values.len() < 2 || is_list_key(&key) => Ok((key, values)),
                Some(values) => Err(format!("`{key}` takes one value, not {}", values.len())),
                None => Err(format!(
                    "`{key}` must be a text, a number, true or false, or a list of them"
                )),
            }
        })
        .collect()
}

/// Unknown keys are reported elsewhere.
fn is_list_key(key: &str) -> bool {
    keys().get(key).is_none_or(|args| args.iter().any(is_list))
}

#[cfg(test)]
mod tests;
