//! berth-hostd: `berth-hostd --config FILE`.

use anyhow::{Context, bail};
use berth_config::LogFormat;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::{io::IsTerminal, path::PathBuf};

fn main() -> anyhow::Result<()> {
    berth_sys::inherited::shed().context("cannot close what it was started with")?;
    berth_sys::keep_private();
    // 1. Nobody looks into this process, and no core of it is ever written: it
    //    holds secrets.
    nix::sys::prctl::set_dumpable(false).context("cannot keep others out of this process")?;
    setrlimit(Resource::RLIMIT_CORE, 1, 1).context("cannot forbid core dumps")?;
    //    A machine costs a dozen descriptors.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).context("cannot read the limit of descriptors")?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).context("cannot raise the limit of descriptors")?;
    let master = berth_hostd::MasterKey::take_given().map_err(|error| anyhow::anyhow!(error.chain()))?;
    // 2. The configuration, then the log that it asks for.
    let path = config_path()?;
    let loaded =
        berth_config::load(&path).with_context(|| format!("the configuration {}", path.display()))?;
    let service = &loaded.config.service;
    let filter = tracing_subscriber::EnvFilter::try_new(&service.log).context("service.log")?;
    let terminal = std::io::stderr().is_terminal();
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(terminal).with_writer(std::io::stderr);
    match service.log_format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.json().init(),
    }
    for key in &loaded.unknown {
        tracing::warn!(key, "the configuration has a key that nothing reads");
    }
    if !nix::unistd::Uid::effective().is_root() {
        bail!("hostd needs root: it makes namespaces, mounts and users of its own");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(berth_hostd::run(loaded.config, master)).map_err(|error| anyhow::anyhow!(error.chain()))
}

fn config_path() -> anyhow::Result<PathBuf> {
    let mut arguments = std::env::args_os().skip(1);
    match (arguments.next(), arguments.next(), arguments.next()) {
        (Some(flag), Some(path), None) if flag == "--config" => Ok(path.into()),
        _ => bail!("usage: berth-hostd --config FILE"),
    }
}
