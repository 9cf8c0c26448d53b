//! SSH with a key that stays on the host.

use crate::bridge::{flow::Connection, rules::Ready};
use berth_types::egress::HostName;
use std::sync::Arc;

pub async fn serve(connection: Connection, _name: HostName, _secret: Arc<Ready>) {
    crate::bridge::dial::reset(connection.stream);
}
