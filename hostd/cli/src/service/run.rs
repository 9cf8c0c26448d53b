//! `berth run`: the service in the foreground.

use super::{daemon::Daemon, place::Place, prepare, process::Recorded, reach, ready, stop::Stop};
use crate::context::Context;
use berth_api::{Caller, Client, Request};
use berth_types::{Code, Refusal};
use std::time::Duration;

/// A first start makes the pool and finds machines again.
const HOSTD_START: Duration = Duration::from_secs(120);
/// A first start makes host keys.
const GATEWAY_START: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(10);
const LEFT: &str = "machines that still run are found again by the next start";

pub fn run(context: &Context) -> Result<(), Refusal> {
    context.need_root("run")?;
    let place = Place::new(&context.config.service.run);
    let _claim = place.claim()?;
    crate::runtime()?.block_on(serve(context, &place))
}

async fn serve(context: &Context, place: &Place) -> Result<(), Refusal> {
    let mut stop = Stop::listen()?;
    let config = prepare::prepare(context, place).await?;
    let mut hostd = Daemon::new("hostd", config.clone(), place.clone());
    let mut gateway = Daemon::new("gateway", config, place.clone());

    let started = tokio::select! {
        started = start(context, &mut hostd, &mut gateway) => started.map(|()| true),
        () = stop.asked() => Ok(false),
    };
    if let Ok(true) = started {
        mark_ready(place);
        show!("berth is up: {}", context.ssh_line());
        tokio::select! {
            never = hostd.keep() => match never {},
            never = gateway.keep() => match never {},
            () = stop.asked() => {}
        }
    }

    place.forget("ready");
    // Nobody new comes in while the machines stop.
    gateway.stop(PATIENCE).await;
    stop_machines(context, &mut hostd, &mut stop).await;
    started.map(|_| ())
}

async fn start(context: &Context, hostd: &mut Daemon, gateway: &mut Daemon) -> Result<(), Refusal> {
    hostd.start()?;
    let answers = async {
        ready::hostd(context).await;
        Ok(())
    };
    first_answer("hostd", hostd, answers, HOSTD_START).await?;
    reach::check(context)?;
    gateway.start()?;
    let answers = ready::gateway(context, GATEWAY_START);
    first_answer("gateway", gateway, answers, GATEWAY_START + PATIENCE).await
}

/// Tells `berth up` that the service answers.
fn mark_ready(place: &Place) {
    let marked = Recorded::this().map(|this| place.record("ready", this));
    if !matches!(marked, Some(Ok(()))) {
        say!("berth: cannot write into the run directory: 'berth up' will not see that it is up");
    }
}

/// One that dies before it ever answered would die again.
async fn first_answer(
    name: &str,
    daemon: &mut Daemon,
    ready: impl Future<Output = Result<(), Refusal>>,
    limit: Duration,
) -> Result<(), Refusal> {
    tokio::select! {
        ready = ready => ready,
        status = daemon.ended() => {
            let message = format!("{name} did not start ({status})");
            Err(Refusal::new(Code::Failed, message, "its last lines say why"))
        }
        () = tokio::time::sleep(limit) => {
            let message = format!("{name} does not answer after {limit:?}");
            Err(Refusal::new(Code::Failed, message, "its last lines may say why"))
        }
    }
}

/// Puts every machine to sleep and then stops hostd. A second wish to stop leaves the
/// machines as they are: running ones run on and are found again by the next start.
async fn stop_machines(context: &Context, hostd: &mut Daemon, stop: &mut Stop) {
    let client = Client::new(context.config.service.api_socket());
    let stopped = tokio::select! {
        called = client.call_with(Caller::Operator, Request::Shutdown, |text| say!("{text}")) => match called {
            Ok(_) => true,
            Err(error) => {
                say!("berth: {}: {LEFT}", error.refusal().message);
                false
            }
        },
        () = stop.asked() => {
            say!("berth: cut short: {LEFT}");
            false
        }
    };
    if !(stopped && hostd.finish(PATIENCE).await) {
        hostd.stop(PATIENCE).await;
    }
}
