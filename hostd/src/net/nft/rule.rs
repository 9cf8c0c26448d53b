//! A rule, as the expressions that the kernel runs for it.

use super::{Attributes, kernel};

/// A rule: what is compared, left to right, then what is done.
#[derive(Clone, Debug, Default)]
pub struct Rule(pub(super) Attributes);

/// Where in a packet to look.
#[derive(Clone, Copy, Debug)]
enum Header {
    Network,
    Transport,
}

impl Rule {
    /// Packets that came in on this link.
    pub fn from_link(name: &str) -> Self {
        let mut padded = [0; libc::IFNAMSIZ];
        for (place, byte) in padded.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
            *place = byte;
        }
        Self::default().meta(libc::NFT_META_IIFNAME).is(&padded)
    }

    /// TCP, UDP or ICMP.
    pub fn protocol(self, protocol: libc::c_int) -> Self {
        self.meta(libc::NFT_META_L4PROTO).is(&[protocol as u8])
    }

    /// From any address but this.
    pub fn source_is_not(self, address: [u8; 4]) -> Self {
        self.load(Header::Network, 12, address.len()).compare(libc::NFT_CMP_NEQ, &address)
    }

    pub fn destination(self, address: [u8; 4]) -> Self {
        self.field(Header::Network, 16, &address)
    }

    pub fn port(self, port: u16) -> Self {
        self.field(Header::Transport, 2, &port.to_be_bytes())
    }

    pub fn source_port(self, port: u16) -> Self {
        self.field(Header::Transport, 0, &port.to_be_bytes())
    }

    pub fn icmp(self, kind: u8) -> Self {
        self.field(Header::Transport, 0, &[kind])
    }

    /// Some bytes of a header are these.
    fn field(self, header: Header, offset: libc::c_int, value: &[u8]) -> Self {
        self.load(header, offset, value.len()).is(value)
    }

    /// Some bytes of a header, to be compared.
    fn load(self, header: Header, offset: libc::c_int, length: usize) -> Self {
        let base = match header {
            Header::Network => libc::NFT_PAYLOAD_NETWORK_HEADER,
            Header::Transport => libc::NFT_PAYLOAD_TRANSPORT_HEADER,
        };
        let length = libc::c_int::try_from(length).unwrap_or(libc::c_int::MAX);
        let load = Attributes::default()
            .number(kernel::PAYLOAD_DREG, libc::NFT_REG_1)
            .number(kernel::PAYLOAD_BASE, base)
            .number(kernel::PAYLOAD_OFFSET, offset)
            .number(kernel::PAYLOAD_LEN, length);
        self.expression("payload", load)
    }

    /// The connection was led elsewhere by a redirect.
    pub fn redirected(self) -> Self {
        /// IPS_DST_NAT of the kernel's connection tracking.
        const DESTINATION_CHANGED: u32 = 1 << 5;
        self.tracked(libc::NFT_CT_STATUS, DESTINATION_CHANGED)
    }

    /// The first packet of a connection.
    pub fn connection_starts(self) -> Self {
        /// NF_CT_STATE_BIT(IP_CT_NEW).
        const NEW: u32 = 1 << 3;
        self.tracked(libc::NFT_CT_STATE, NEW)
    }

    /// The namespace tracks more connections than this.
    pub fn more_than(self, connections: u32) -> Self {
        /// NFT_CONNLIMIT_F_INV: matches beyond the count, not up to it.
        const BEYOND: u32 = 1;
        let limit = Attributes::default()
            .bytes(kernel::CONNLIMIT_COUNT, &connections.to_be_bytes())
            .bytes(kernel::CONNLIMIT_FLAGS, &BEYOND.to_be_bytes());
        self.expression("connlimit", limit)
    }

    /// Any of these bits is set in what the kernel's tracking says of the connection.
    fn tracked(self, key: libc::c_int, bits: u32) -> Self {
        let load = Attributes::default().number(kernel::CT_DREG, libc::NFT_REG_1).number(kernel::CT_KEY, key);
        let value = |bits: u32| Attributes::default().bytes(kernel::DATA_VALUE, &bits.to_ne_bytes());
        let mask = Attributes::default()
            .number(kernel::BITWISE_SREG, libc::NFT_REG_1)
            .number(kernel::BITWISE_DREG, libc::NFT_REG_1)
            .number(kernel::BITWISE_LEN, 4)
            .nest(kernel::BITWISE_MASK, value(bits))
            .nest(kernel::BITWISE_XOR, value(0));
        self.expression("ct", load)
            .expression("bitwise", mask)
            .compare(libc::NFT_CMP_NEQ, &0u32.to_ne_bytes())
    }

    /// Leads it to a port of this namespace.
    pub fn redirect(self, port: u16) -> Self {
        /// NF_NAT_RANGE_PROTO_SPECIFIED: the port counts.
        const PORT_GIVEN: libc::c_int = 2;
        let value = Attributes::default().bytes(kernel::DATA_VALUE, &port.to_be_bytes());
        let load = Attributes::default()
            .number(kernel::IMMEDIATE_DREG, libc::NFT_REG_1)
            .nest(kernel::IMMEDIATE_DATA, value);
        let redirect = Attributes::default()
            .number(kernel::REDIR_REG_PROTO_MIN, libc::NFT_REG_1)
            .number(kernel::REDIR_FLAGS, PORT_GIVEN);
        self.expression("immediate", load).expression("redir", redirect)
    }

    pub fn accept(self) -> Self {
        self.verdict(libc::NF_ACCEPT, Attributes::default())
    }

    pub fn drop(self) -> Self {
        self.verdict(libc::NF_DROP, Attributes::default())
    }

    /// Goes on with the rules of another chain.
    pub fn go_to(self, chain: &str) -> Self {
        self.verdict(libc::NFT_GOTO, Attributes::default().text(kernel::VERDICT_CHAIN, chain))
    }

    /// Says no with an ICMP destination-unreachable of this code.
    pub fn reject(self, code: u8) -> Self {
        let reject = Attributes::default()
            .number(kernel::REJECT_TYPE, libc::NFT_REJECT_ICMP_UNREACH)
            .bytes(kernel::REJECT_ICMP_CODE, &[code]);
        self.expression("reject", reject)
    }

    /// Goes on only so many times a second, and as often again at once.
    pub fn limit(self, a_second: u32) -> Self {
        let limit = Attributes::default()
            .bytes(kernel::LIMIT_RATE, &u64::from(a_second).to_be_bytes())
            .bytes(kernel::LIMIT_UNIT, &1u64.to_be_bytes())
            .bytes(kernel::LIMIT_BURST, &a_second.to_be_bytes());
        self.expression("limit", limit)
    }

    /// Shows the packet to whoever listens to this group, under this heading.
    pub fn log(self, group: u16, heading: &str) -> Self {
        let log = Attributes::default()
            .bytes(kernel::LOG_GROUP, &group.to_be_bytes())
            .text(kernel::LOG_PREFIX, heading);
        self.expression("log", log)
    }

    fn verdict(self, code: libc::c_int, chain: Attributes) -> Self {
        let code = chain.number(kernel::VERDICT_CODE, code);
        let verdict = Attributes::default()
            .number(kernel::IMMEDIATE_DREG, libc::NFT_REG_VERDICT)
            .nest(kernel::IMMEDIATE_DATA, Attributes::default().nest(kernel::DATA_VERDICT, code));
        self.expression("immediate", verdict)
    }

    fn meta(self, key: libc::c_int) -> Self {
        let load =
            Attributes::default().number(kernel::META_DREG, libc::NFT_REG_1).number(kernel::META_KEY, key);
        self.expression("meta", load)
    }

    fn is(self, value: &[u8]) -> Self {
        self.compare(libc::NFT_CMP_EQ, value)
    }

    fn compare(self, operator: libc::c_int, value: &[u8]) -> Self {
        let compare = Attributes::default()
            .number(kernel::CMP_SREG, libc::NFT_REG_1)
            .number(kernel::CMP_OP, operator)
            .nest(kernel::CMP_DATA, Attributes::default().bytes(kernel::DATA_VALUE, value));
        self.expression("cmp", compare)
    }

    fn expression(self, name: &str, data: Attributes) -> Self {
        let expression = Attributes::default().text(kernel::EXPR_NAME, name).nest(kernel::EXPR_DATA, data);
        Self(self.0.nest(kernel::LIST_ELEM, expression))
    }
}
