//! berth-gateway: binds, reads its keys, gives up root, serves.

use anyhow::Context;
use berth_config::LogFormat;
use berth_gateway::{
    Arguments, privilege,
    ssh::{Gateway, hostkey, server},
};
use clap::Parser;
use std::{net::TcpListener, sync::Arc};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

fn main() -> anyhow::Result<()> {
    berth_sys::inherited::shed().context("cannot close what it was started with")?;
    // Its host keys are for its own user.
    nix::sys::stat::umask(nix::sys::stat::Mode::S_IRWXG | nix::sys::stat::Mode::S_IRWXO);
    let arguments = Arguments::parse();
    let loaded = berth_config::load(&arguments.config)
        .with_context(|| format!("in {}", arguments.config.display()))?;
    let config = loaded.config;
    start_log(&config.service)?;
    for key in &loaded.unknown {
        tracing::warn!(key, "unknown key in the configuration");
    }

    // As root, if we are: limits, listeners, keys.
    privilege::limits()?;
    let user = privilege::unprivileged(&config.gateway.user)?;
    let listeners = bind(&config.gateway)?;
    let directory = config.service.data.join("gateway");
    let keys = hostkey::load_or_make(&directory)?;
    if let Some(user) = &user {
        privilege::drop_to(user)?;
    }

    let gateway = Arc::new(Gateway::new(&config, keys));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(gateway, listeners))
}

fn start_log(service: &berth_config::Service) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&service.log).context("service.log")?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match service.log_format {
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

fn bind(settings: &berth_config::Gateway) -> anyhow::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in &settings.listen {
        let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
        listener.set_nonblocking(true)?;
        listeners.push(listener);
    }
    Ok(listeners)
}

async fn serve(gateway: Arc<Gateway>, listeners: Vec<TcpListener>) -> anyhow::Result<()> {
    let listeners =
        listeners.into_iter().map(tokio::net::TcpListener::from_std).collect::<std::io::Result<Vec<_>>>()?;
    for listener in &listeners {
        tracing::info!(address = %listener.local_addr()?, "listening");
    }
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    server::run(gateway, listeners, stop).await;
    Ok(())
}
