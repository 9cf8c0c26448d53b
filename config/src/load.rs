//! Reading a file: every problem at once, unknown keys with their path.

use crate::{Config, validate::validate};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    #[error("{}", .0.join("\n"))]
    Invalid(Vec<String>),
}

#[derive(Debug)]
pub struct Loaded {
    pub config: Config,
    /// Keys that nothing reads, with their path: most likely typing errors.
    pub unknown: Vec<String>,
}

pub fn load(path: &Path) -> Result<Loaded, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    parse(&text)
}

pub fn parse(text: &str) -> Result<Loaded, ConfigError> {
    let mut unknown = Vec::new();
    let config: Config =
        serde_ignored::deserialize(toml::Deserializer::parse(text)?, |path| unknown.push(path.to_string()))?;
    let problems = validate(&config);
    if problems.is_empty() { Ok(Loaded { config, unknown }) } else { Err(ConfigError::Invalid(problems)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_files_are_valid_and_have_no_unknown_keys() {
        for text in [crate::DEFAULT_TOML, crate::PRODUCTION_TOML] {
            let loaded = parse(text).unwrap();
            assert_eq!(loaded.unknown, Vec::<String>::new());
        }
    }

    #[test]
    fn an_unknown_key_is_named_with_its_path() {
        let text = crate::DEFAULT_TOML.replace("[host]", "[host]\nmemmory = 3");
        assert_eq!(parse(&text).unwrap().unknown, ["host.memmory"]);
    }

    #[test]
    fn every_key_has_a_comment() {
        for text in [crate::DEFAULT_TOML, crate::PRODUCTION_TOML] {
            let mut before = "";
            for line in text.lines() {
                if line.contains('=') && !line.starts_with('#') {
                    assert!(before.starts_with('#'), "no comment above: {line}");
                }
                before = line;
            }
        }
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let text = crate::DEFAULT_TOML
            .replace("cpus = 2", "cpus = 0")
            .replace("listen = [\"127.0.0.1:2222\", \"[::1]:2222\"]", "listen = []");
        let Err(ConfigError::Invalid(problems)) = parse(&text) else { panic!("accepted") };
        assert_eq!(problems.len(), 2, "{problems:?}");
    }
}
