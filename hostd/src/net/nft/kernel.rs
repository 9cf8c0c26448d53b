//! Attribute numbers of `linux/netfilter/nf_tables.h`, which libc does not have.
//! Those of one message share a prefix.

use libc::c_int;

pub const TABLE_NAME: c_int = 1;

pub const CHAIN_TABLE: c_int = 1;
pub const CHAIN_NAME: c_int = 3;
pub const CHAIN_HOOK: c_int = 4;
pub const CHAIN_POLICY: c_int = 5;
pub const CHAIN_TYPE: c_int = 7;
pub const HOOK_HOOKNUM: c_int = 1;
pub const HOOK_PRIORITY: c_int = 2;

pub const RULE_TABLE: c_int = 1;
pub const RULE_CHAIN: c_int = 2;
pub const RULE_EXPRESSIONS: c_int = 4;
pub const LIST_ELEM: c_int = 1;
pub const EXPR_NAME: c_int = 1;
pub const EXPR_DATA: c_int = 2;

pub const DATA_VALUE: c_int = 1;
pub const DATA_VERDICT: c_int = 2;
pub const VERDICT_CODE: c_int = 1;
pub const VERDICT_CHAIN: c_int = 2;

pub const IMMEDIATE_DREG: c_int = 1;
pub const IMMEDIATE_DATA: c_int = 2;
pub const META_DREG: c_int = 1;
pub const META_KEY: c_int = 2;
pub const CMP_SREG: c_int = 1;
pub const CMP_OP: c_int = 2;
pub const CMP_DATA: c_int = 3;
pub const PAYLOAD_DREG: c_int = 1;
pub const PAYLOAD_BASE: c_int = 2;
pub const PAYLOAD_OFFSET: c_int = 3;
pub const PAYLOAD_LEN: c_int = 4;
pub const CT_DREG: c_int = 1;
pub const CT_KEY: c_int = 2;
pub const BITWISE_SREG: c_int = 1;
pub const BITWISE_DREG: c_int = 2;
pub const BITWISE_LEN: c_int = 3;
pub const BITWISE_MASK: c_int = 4;
pub const BITWISE_XOR: c_int = 5;
pub const REDIR_REG_PROTO_MIN: c_int = 1;
pub const REDIR_FLAGS: c_int = 3;
pub const CONNLIMIT_COUNT: c_int = 1;
pub const CONNLIMIT_FLAGS: c_int = 2;
pub const REJECT_TYPE: c_int = 1;
pub const REJECT_ICMP_CODE: c_int = 2;
pub const LIMIT_RATE: c_int = 1;
pub const LIMIT_UNIT: c_int = 2;
pub const LIMIT_BURST: c_int = 3;
pub const LOG_GROUP: c_int = 1;
pub const LOG_PREFIX: c_int = 2;

// And of `linux/netfilter/nfnetlink_log.h`.
pub const CONFIG_COMMAND: c_int = 1;
pub const CONFIG_MODE: c_int = 2;
pub const CONFIG_THRESHOLD: c_int = 5;
