//! What a test instance has different from the development configuration.

use anyhow::{Context, Result};
use std::{net::SocketAddr, path::Path};
use toml::{Table, Value};

/// `section.key` and its value. Starts from default.toml, so that a case also
/// tests what people get.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    changes: Vec<(String, Value)>,
}

impl Settings {
    #[must_use]
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.changes.push((key.to_owned(), value.into()));
        self
    }

    /// The file of an instance. `number` keeps the host users of its
    /// hypervisors apart from those of instances at the same time.
    pub(crate) fn render(&self, directory: &Path, address: SocketAddr, number: u32) -> Result<String> {
        let mut table: Table = berth_config::DEFAULT_TOML.parse()?;
        let path = |name: &str| Value::from(directory.join(name).display().to_string());
        let images = crate::images().display().to_string();
        let base = 1_000_000 + (std::process::id() % 1000) * 100_000 + (number % 100) * 1000;
        let usual = [
            ("service.data", path("data")),
            ("service.run", path("run")),
            ("service.log", Value::from("debug,russh=info,sled=info")),
            ("gateway.listen", Value::from(vec![address.to_string()])),
            // There on every host, so a test makes no user.
            ("gateway.user", Value::from("nobody")),
            ("machine.memory", Value::from("384M")),
            ("machine.disk", Value::from("4G")),
            ("idle.ready", Value::from(vec!["256M"])),
            ("host.pool_size", Value::from("24G")),
            ("host.spare_networks", Value::from(2)),
            ("host.uid_base", Value::from(i64::from(base))),
            ("image.directory", Value::from(images)),
        ];
        for (key, value) in usual {
            put(&mut table, key, value)?;
        }
        for (key, value) in &self.changes {
            put(&mut table, key, value.clone())?;
        }
        Ok(toml::to_string(&table)?)
    }
}

fn put(table: &mut Table, key: &str, value: Value) -> Result<()> {
    let (section, name) = key.rsplit_once('.').context("a key is section.name")?;
    let mut place = table;
    for part in section.split('.') {
        place = place
            .get_mut(part)
            .and_then(Value::as_table_mut)
            .with_context(|| format!("no section {section} in the configuration"))?;
    }
    // A key that the configuration does not know would change nothing.
    *place.get_mut(name).with_context(|| format!("no key {key} in the configuration"))? = value;
    Ok(())
}
