//! Whether a login comes as far as hostd: `berth up` compares what it is told here with
//! what the gateway passes on.

use crate::error::{IoContext, Result};
use berth_api::Reply;
use std::sync::OnceLock;

/// Random bytes of the word.
const LENGTH: usize = 16;
static WORD: OnceLock<String> = OnceLock::new();

pub fn ready() -> Result<Reply> {
    if let Some(word) = WORD.get() {
        return Ok(Reply::Ready(word.clone()));
    }
    let mut bytes = [0; LENGTH];
    getrandom::fill(&mut bytes).during("choose a word")?;
    let chosen = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Reply::Ready(WORD.get_or_init(|| chosen).clone()))
}
