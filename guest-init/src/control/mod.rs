//! hostd's own stream: requests in turn, each answered.

pub mod equip;
pub mod freeze;
pub mod power;
mod repair;
mod vitals;

use std::sync::Arc;

use berth_guest_protocol::{Answer, Control, Kind};

use crate::{
    error::Result,
    guest::Guest,
    server::wire::{Wire, unexpected},
};

pub fn run(guest: &Arc<Guest>, wire: &mut Wire) -> Result<()> {
    loop {
        let (kind, payload) = wire.receive()?;
        let request = match kind {
            Kind::Control => wire.decode(&payload)?,
            other => return Err(unexpected(other)),
        };
        wire.push(&answer(guest, request))?;
        wire.settle()?;
    }
}

fn answer(guest: &Arc<Guest>, request: Control) -> Answer {
    let done = match request {
        Control::Ping => Ok(()),
        Control::Vitals => return Answer::Vitals(vitals::take(guest)),
        // On a host nothing is frozen, broken or ended.
        _ if !guest.is_machine() => Ok(()),
        // Synced first, while the user's processes still run: what they write
        // after that is in the memory that is captured with the disk.
        Control::Freeze => {
            rustix::fs::sync();
            guest.freezer.freeze()
        }
        Control::Rehearse => guest.rehearser.ask(&guest.freezer),
        Control::Thaw => guest.freezer.thaw(),
        Control::Equip(equip) => {
            guest.equipment.take(equip);
            Ok(())
        }
        Control::Repair(request) => repair::run(guest, &request),
        Control::Shutdown(how) => {
            power::end(guest, how);
            Ok(())
        }
    };
    match done {
        Ok(()) => Answer::Done,
        Err(error) => Answer::Failed(error.line()),
    }
}
