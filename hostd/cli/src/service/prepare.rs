//! What has to be so before the daemons start, each with its own sentence:
//! a daemon's log is the wrong place to learn that a port is taken.

use super::{account, place::Place};
use crate::{api, context::Context, image};
use berth_api::Client;
use berth_types::{Code, Refusal};
use std::{fs, io, net::TcpListener, path::PathBuf, time::Duration};

const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the file that the daemons read their configuration from.
pub async fn prepare(context: &Context, place: &Place) -> Result<PathBuf, Refusal> {
    let config = &context.config;
    if !image::is_current(&config.image.directory, &config.machine.image)? {
        say!("berth: image '{}' is out of date: 'berth image build' renews it", config.machine.image);
    }
    account::ensure(&config.gateway.user)?;
    // What a killed supervisor left. Machines live through this and are found again.
    for name in ["gateway", "hostd"] {
        if let Some(left) = place.daemon(name).and_then(|daemon| daemon.open()) {
            say!("berth: ending the {name} that an earlier run left");
            left.end(PATIENCE).await;
            place.forget(name);
        }
    }
    if api::status(&Client::new(config.service.api_socket())).await.is_some() {
        let message = format!("another hostd answers on {}", config.service.api_socket().display());
        return Err(Refusal::new(Code::Conflict, message, "stop it, or choose another service.run"));
    }
    for address in &config.gateway.listen {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let message = format!("{address} is in use");
                let hint = "stop what listens there, or change gateway.listen";
                return Err(Refusal::new(Code::Conflict, message, hint));
            }
            // Other reasons are the gateway's to judge: a host without IPv6 is no fault.
            _ => {}
        }
    }
    config_file(context)
}

fn config_file(context: &Context) -> Result<PathBuf, Refusal> {
    let run = &context.config.service.run;
    let failed = |path: &PathBuf, error: io::Error| {
        let message = format!("cannot use {} ({error})", path.display());
        Refusal::new(Code::Failed, message, "look at the path and try again")
    };
    match &context.path {
        Some(path) => fs::canonicalize(path).map_err(|error| failed(path, error)),
        None => {
            let path = run.join("berth.toml");
            fs::write(&path, berth_config::DEFAULT_TOML).map_err(|error| failed(&path, error))?;
            Ok(path)
        }
    }
}
