//! The responder's two sockets.

use super::{
    Resolved,
    answer::{About, parse},
    budget::Allowance,
    resolve,
};
use crate::{bridge::machine::Machine, control::Protocol};
use hickory_proto::op::ResponseCode;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    sync::Semaphore,
    time::timeout,
};

/// Questions of one machine that wait for a resolver.
const AT_ONCE: usize = 64;
/// Of one TCP connection.
const MAX_QUESTIONS: usize = 32;
const IDLE: Duration = Duration::from_secs(10);

pub async fn udp(machine: Arc<Machine>, socket: UdpSocket) {
    let socket = Arc::new(socket);
    let waiting = Arc::new(Semaphore::new(AT_ONCE));
    let mut buffer = [0u8; 2048];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            // An ICMP error for an earlier answer; the socket is fine.
            tokio::task::yield_now().await;
            continue;
        };
        if !granted(&machine) {
            continue;
        }
        let Ok(place) = waiting.clone().try_acquire_owned() else { continue };
        let question = buffer.get(..length).unwrap_or_default().to_vec();
        let (machine, socket) = (machine.clone(), socket.clone());
        tokio::spawn(async move {
            if let Some(answer) = respond(&machine, &question).await {
                let _ = socket.send_to(&answer, from).await;
            }
            drop(place);
        });
    }
}

pub async fn tcp(machine: Arc<Machine>, mut stream: TcpStream) {
    for _ in 0..MAX_QUESTIONS {
        let Ok(Ok(length)) = timeout(IDLE, stream.read_u16()).await else { return };
        let mut question = vec![0; usize::from(length)];
        let Ok(Ok(_)) = timeout(IDLE, stream.read_exact(&mut question)).await else { return };
        if !granted(&machine) {
            return;
        }
        let Some(answer) = respond(&machine, &question).await else { return };
        let Ok(length) = u16::try_from(answer.len()) else { return };
        let framed = [length.to_be_bytes().as_slice(), &answer].concat();
        let Ok(Ok(())) = timeout(IDLE, stream.write_all(&framed)).await else { return };
    }
}

fn granted(machine: &Machine) -> bool {
    let rate = machine.host.shared().limits.dns_per_second;
    match machine.questions.ask(rate, Instant::now()) {
        Allowance::Granted => true,
        Allowance::Dropped => false,
        Allowance::DroppedFirst(before) => {
            let mut decision = machine.decision(Protocol::Dns);
            decision.rule = format!("limit dns_per_second {rate}");
            decision.reason = format!("too many questions, {before} dropped before this one");
            machine.host.reporter.decided(decision);
            false
        }
    }
}

async fn respond(machine: &Arc<Machine>, bytes: &[u8]) -> Option<Vec<u8>> {
    let question = parse(bytes)?;
    let About::Addresses(name) = &question.about else { return question.without_lookup() };
    match resolve(machine, name).await {
        Resolved::Addresses(addresses, lifetime) => {
            question.answer(ResponseCode::NoError, &addresses, lifetime)
        }
        // As if it were not there: programs give up at once, the log says why.
        Resolved::Refused | Resolved::NoSuchName => {
            question.answer(ResponseCode::NXDomain, &[], Duration::ZERO)
        }
        Resolved::Failed => question.without_lookup(),
    }
}
