//! `berth down`: machines put to sleep, then everything gone.

use super::{place::Place, process::Running, ready};
use crate::{api, context::Context, output};
use berth_api::{Caller, Client, Request};
use berth_types::{Code, Refusal};
use rustix::process::Signal;
use std::time::Duration;

/// On top of what the machines may take.
const GRACE: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(context: &Context) -> Result<(), Refusal> {
    context.need_root("down")?;
    let was_running = crate::runtime()?.block_on(down(context))?;
    if context.json {
        return output::json(&serde_json::json!({ "was_running": was_running }));
    }
    show!("{}", if was_running { "berth is down" } else { "berth was not running" });
    Ok(())
}

async fn down(context: &Context) -> Result<bool, Refusal> {
    let config = &context.config;
    let place = Place::new(&config.service.run);
    let client = Client::new(config.service.api_socket());
    let status = api::status(&client).await;
    let supervisor = place.holder().and_then(|holder| holder.open());
    let was_running = status.is_some() || supervisor.is_some();
    if let Some(status) = status.filter(|status| status.running > 0) {
        say!("putting {} running machines to sleep", status.running);
    }

    // 1. Whoever supervises knows the order; without one, hostd is asked here.
    let limit = config.machine.stop_timeout.duration() * 2 + GRACE;
    match supervisor {
        Some(supervisor) => supervised(&supervisor, limit).await?,
        None if was_running => {
            if let Some(gateway) = place.daemon("gateway").and_then(|daemon| daemon.open()) {
                gateway.end(PATIENCE).await;
            }
            let shutdown = client.call_with(Caller::Operator, Request::Shutdown, |text| say!("{text}"));
            // hostd may end before its answer has arrived; whether it did is seen below.
            let _ = tokio::time::timeout(limit, shutdown).await;
        }
        None => {}
    }

    // 2. Daemons that nobody supervised and that did not listen.
    for name in ["gateway", "hostd"] {
        if let Some(left) = place.daemon(name).and_then(|daemon| daemon.open())
            && !left.ended(PATIENCE).await
        {
            left.end(PATIENCE).await;
        }
        place.forget(name);
    }
    if ready::now(context).await {
        let hint = "it was started by other means, stop it by them";
        return Err(Refusal::new(Code::Conflict, "berth still answers", hint));
    }
    Ok(was_running)
}

async fn supervised(supervisor: &Running, limit: Duration) -> Result<(), Refusal> {
    supervisor.signal(Signal::TERM);
    if supervisor.ended(limit).await {
        return Ok(());
    }
    let hint = "look at its log, or run 'berth down' again to cut it short";
    Err(Refusal::new(Code::Failed, format!("berth has not stopped after {limit:?}"), hint))
}
