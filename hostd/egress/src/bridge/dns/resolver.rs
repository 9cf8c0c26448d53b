//! Asking the host's resolvers: over UDP, over TCP when the answer is cut.

use crate::bridge::host::Shared;
use berth_types::egress::HostName;
use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{Name, RData, RecordType},
};
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

const PATIENCE: Duration = Duration::from_secs(2);
const TRIES: usize = 2;
const MAX_ADDRESSES: usize = 32;
const OVERRIDE: Duration = Duration::from_secs(60);
const SHORTEST: u32 = 1;
const LONGEST: u32 = 3600;

#[derive(Debug)]
pub struct Found {
    pub addresses: Vec<Ipv4Addr>,
    pub lifetime: Duration,
}

#[derive(Debug)]
pub enum LookupError {
    NoSuchName,
    Failed(String),
}

pub async fn lookup(shared: &Shared, name: &HostName) -> Result<Found, LookupError> {
    if let Some(addresses) = shared.hosts.get(name) {
        return Ok(Found { addresses: addresses.clone(), lifetime: OVERRIDE });
    }
    let mut failed = "there is no resolver".to_owned();
    for _ in 0..TRIES {
        for resolver in &shared.resolvers {
            match timeout(PATIENCE, ask(*resolver, name)).await {
                Ok(Ok(answer)) => match read(&answer, name) {
                    Ok(found) => return Ok(found),
                    Err(LookupError::NoSuchName) => return Err(LookupError::NoSuchName),
                    Err(LookupError::Failed(reason)) => failed = reason,
                },
                Ok(Err(error)) => failed = format!("the resolver {resolver}: {error}"),
                Err(_) => failed = format!("the resolver {resolver} does not answer"),
            }
        }
    }
    Err(LookupError::Failed(failed))
}

async fn ask(resolver: SocketAddr, name: &HostName) -> io::Result<Message> {
    let mut id = [0u8; 2];
    getrandom::fill(&mut id).map_err(io::Error::other)?;
    let mut question = Message::new(u16::from_ne_bytes(id), MessageType::Query, OpCode::Query);
    question.metadata.recursion_desired = true;
    let fqdn = Name::from_ascii(format!("{name}.")).map_err(io::Error::other)?;
    question.add_query(Query::query(fqdn, RecordType::A));
    let bytes = question.to_vec().map_err(io::Error::other)?;
    let answer = over_udp(resolver, &bytes, &question).await?;
    if !answer.metadata.truncation {
        return Ok(answer);
    }
    let mut stream = TcpStream::connect(resolver).await?;
    stream.write_u16(u16::try_from(bytes.len()).map_err(io::Error::other)?).await?;
    stream.write_all(&bytes).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    answers(&answer, &question).ok_or_else(|| io::Error::other("an answer to another question"))
}

/// A fresh, connected socket: its random port is what an attacker has to guess.
async fn over_udp(resolver: SocketAddr, bytes: &[u8], question: &Message) -> io::Result<Message> {
    let any: SocketAddr = match resolver {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(resolver).await?;
    socket.send(bytes).await?;
    let mut buffer = [0u8; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(answer) = answers(buffer.get(..length).unwrap_or_default(), question) {
            return Ok(answer);
        }
    }
}

fn answers(bytes: &[u8], question: &Message) -> Option<Message> {
    let answer = Message::from_vec(bytes).ok()?;
    let same = answer.metadata.id == question.metadata.id
        && answer.metadata.message_type == MessageType::Response
        && answer.queries == question.queries;
    same.then_some(answer)
}

/// The addresses of the name itself, or of what its aliases lead to.
fn read(answer: &Message, name: &HostName) -> Result<Found, LookupError> {
    match answer.metadata.response_code {
        ResponseCode::NoError => {}
        ResponseCode::NXDomain => return Err(LookupError::NoSuchName),
        other => return Err(LookupError::Failed(format!("the resolver says {other}"))),
    }
    let mut owner = name.clone();
    let mut lifetime = LONGEST;
    let mut addresses = Vec::new();
    for record in &answer.answers {
        let Ok(of) = record.name.to_ascii().parse::<HostName>() else { continue };
        if of != owner {
            continue;
        }
        match &record.data {
            RData::CNAME(alias) => {
                let Ok(alias) = alias.0.to_ascii().parse() else { break };
                owner = alias;
            }
            RData::A(address) if addresses.len() < MAX_ADDRESSES => addresses.push(address.0),
            _ => continue,
        }
        lifetime = lifetime.min(record.ttl);
    }
    if addresses.is_empty() {
        lifetime = lifetime.min(30);
    }
    Ok(Found { addresses, lifetime: Duration::from_secs(lifetime.max(SHORTEST).into()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::{
        Record,
        rdata::{A, CNAME},
    };

    #[test]
    fn only_what_the_name_leads_to_is_believed() {
        let name = |text: &str| Name::from_ascii(text).unwrap();
        let address = |owner: &str, last| {
            Record::from_rdata(name(owner), 120, RData::A(A(Ipv4Addr::new(192, 0, 2, last))))
        };
        let mut answer = Message::new(1, MessageType::Response, OpCode::Query);
        answer.add_answer(address("other.example.", 9));
        answer.add_answer(Record::from_rdata(
            name("www.example."),
            60,
            RData::CNAME(CNAME(name("edge.cdn.example."))),
        ));
        answer.add_answer(address("Edge.CDN.example.", 1));
        answer.add_answer(address("edge.cdn.example.", 2));
        let found = read(&answer, &"www.example".parse().unwrap()).unwrap();
        assert_eq!(found.addresses, [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)]);
        assert_eq!(found.lifetime, Duration::from_secs(60));
        answer.metadata.response_code = ResponseCode::NXDomain;
        assert!(matches!(read(&answer, &"www.example".parse().unwrap()), Err(LookupError::NoSuchName)));
    }
}
