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
    fn private_networks_are_the_operators_to_open() {
        let networks = |text: &str| parse(text).map(|loaded| loaded.config.egress.allow_private);
        assert_eq!(networks(crate::PRODUCTION_TOML).unwrap(), []);
        assert_eq!(networks(crate::DEFAULT_TOML).unwrap().len(), 3);
        let with = |line: &str| {
            let nothing = "allow_private = []\n";
            assert!(crate::PRODUCTION_TOML.contains(nothing));
            networks(&crate::PRODUCTION_TOML.replace(nothing, line))
        };
        // A file of an earlier release has no such key.
        assert_eq!(with("").unwrap(), []);
        assert!(with("allow_private = [\"100.64.0.0/10\", \"10.0.0.9\"]\n").is_ok());
        for bad in ["0.0.0.0/0", "127.0.0.0/8", "169.254.169.254", "192.0.0.0/8"] {
            assert!(with(&format!("allow_private = [\"{bad}\"]\n")).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_user_cannot_have_more_queued_than_all_users() {
        let with = |keys: [&str; 3]| {
            let mut text = crate::DEFAULT_TOML.to_owned();
            let shipped =
                ["channels_per_user = 2000\n", "queue_per_user = \"128M\"\n", "queue_max = \"512M\"\n"];
            for (shipped, key) in shipped.into_iter().zip(keys) {
                assert!(text.contains(shipped), "{shipped}");
                text = text.replace(shipped, key);
            }
            parse(&text).map(|loaded| loaded.config.gateway)
        };
        // A file of an earlier release has none of these keys.
        assert_eq!(with(["", "", ""]).unwrap(), parse(crate::DEFAULT_TOML).unwrap().config.gateway);
        assert!(with(["", "queue_per_user = \"8M\"\n", "queue_max = \"8M\"\n"]).is_ok());
        for (bad, problem) in [
            (["channels_per_user = 0\n", "", ""], "gateway.channels_per_user: must be at least 1"),
            (["", "queue_per_user = \"7M\"\n", ""], "gateway.queue_per_user: must be at least 8M"),
            (["", "", "queue_max = \"64M\"\n"], "gateway.queue_max: is less than gateway.queue_per_user"),
        ] {
            let Err(ConfigError::Invalid(problems)) = with(bad) else { panic!("accepted: {bad:?}") };
            assert_eq!(problems, [problem]);
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
