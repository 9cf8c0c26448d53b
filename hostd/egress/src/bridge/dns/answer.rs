//! Questions of guests, and the answers to them. Only addresses are told: no
//! other kind of record helps a machine that reaches everything by its host.

use berth_types::egress::HostName;
use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, RData, Record, RecordType, rdata::A},
};
use std::{net::Ipv4Addr, time::Duration};

/// The longest question: a name, a type and options.
const MAX_QUESTION: usize = 1024;

#[derive(Debug)]
pub struct Question {
    id: u16,
    wants_recursion: bool,
    query: Query,
    /// Is there something to look up?
    pub about: About,
}

#[derive(Debug, PartialEq, Eq)]
pub enum About {
    Addresses(HostName),
    /// A kind of record that we have none of.
    Nothing,
    /// No name that a host can have.
    NoName,
    Unsupported,
}

/// Nothing for what is not even a question.
pub fn parse(bytes: &[u8]) -> Option<Question> {
    // Counted by hand first: a message may claim thousands of records.
    let header = bytes.first_chunk::<12>()?;
    let count =
        |at: usize| u16::from_be_bytes([*header.get(at).unwrap_or(&0), *header.get(at + 1).unwrap_or(&0)]);
    if bytes.len() > MAX_QUESTION || count(4) != 1 || count(6) != 0 || count(8) != 0 || count(10) > 2 {
        return None;
    }
    let message = Message::from_vec(bytes).ok()?;
    if message.metadata.message_type != MessageType::Query {
        return None;
    }
    let query = message.queries.into_iter().next()?;
    let about = match (message.metadata.op_code, query.query_class(), query.query_type()) {
        (OpCode::Query, DNSClass::IN, kind) => match (query.name().to_ascii().parse(), kind) {
            (Ok(name), RecordType::A) => About::Addresses(name),
            (Ok(_), _) => About::Nothing,
            (Err(_), _) => About::NoName,
        },
        _ => About::Unsupported,
    };
    let metadata = message.metadata;
    Some(Question { id: metadata.id, wants_recursion: metadata.recursion_desired, query, about })
}

impl Question {
    pub fn answer(&self, code: ResponseCode, addresses: &[Ipv4Addr], lifetime: Duration) -> Option<Vec<u8>> {
        let mut message = Message::new(self.id, MessageType::Response, OpCode::Query);
        message.metadata.recursion_desired = self.wants_recursion;
        message.metadata.recursion_available = true;
        message.metadata.response_code = code;
        message.add_query(self.query.clone());
        let seconds = u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX).clamp(1, 300);
        for address in addresses {
            message.add_answer(Record::from_rdata(self.query.name().clone(), seconds, RData::A(A(*address))));
        }
        message.to_vec().ok()
    }

    /// The answer for what cannot be looked up.
    pub fn without_lookup(&self) -> Option<Vec<u8>> {
        let code = match self.about {
            About::Addresses(_) => ResponseCode::ServFail,
            About::Nothing => ResponseCode::NoError,
            About::NoName => ResponseCode::NXDomain,
            About::Unsupported => ResponseCode::NotImp,
        };
        self.answer(code, &[], Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::Name;

    fn question(name: &str, kind: RecordType) -> Vec<u8> {
        let mut message = Message::new(7, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        message.to_vec().unwrap()
    }

    #[test]
    fn questions_and_their_answers() {
        let asked = parse(&question("API.example.com.", RecordType::A)).unwrap();
        assert_eq!(asked.about, About::Addresses("api.example.com".parse().unwrap()));
        let address = Ipv4Addr::new(192, 0, 2, 1);
        let bytes = asked.answer(ResponseCode::NoError, &[address], Duration::from_secs(9999)).unwrap();
        let answer = Message::from_vec(&bytes).unwrap();
        assert_eq!((answer.metadata.id, answer.answers.len()), (7, 1));
        assert_eq!(answer.answers[0].ttl, 300);
        assert_eq!(answer.queries[0].name().to_ascii(), "API.example.com.", "as it was asked");
    }

    #[test]
    fn nothing_but_addresses() {
        for (name, kind, about) in [
            ("a.example.", RecordType::AAAA, About::Nothing),
            ("a.example.", RecordType::TXT, About::Nothing),
            ("a.example.", RecordType::HTTPS, About::Nothing),
            ("1.2.0.192.in-addr.arpa.", RecordType::PTR, About::Nothing),
            (".", RecordType::NS, About::NoName),
        ] {
            assert_eq!(parse(&question(name, kind)).unwrap().about, about, "{name}");
        }
    }

    #[test]
    fn what_is_no_question() {
        let good = question("a.example.", RecordType::A);
        let mut response = good.clone();
        response[2] |= 0x80;
        let mut many = good.clone();
        many[5] = 2;
        let mut records = good.clone();
        records[10] = 0xff;
        for bad in [
            &[][..],
            &good[..11],
            &good[..20],
            &response,
            &many,
            &records,
            &[good.clone(), vec![0; 2000]].concat(),
        ] {
            assert!(parse(bad).is_none());
        }
    }
}
