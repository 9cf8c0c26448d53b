//! Directory listings, with the line that `ls -l` would print: clients show it.

use std::collections::HashMap;

use rustix::{
    fs::{AtFlags, FileType, Stat, statat},
    time::{ClockId, clock_gettime},
};

use super::{
    Handled, Server, attributes,
    handles::Handle,
    packet::{Reader, Status, Writer, kind},
};
use crate::account;

/// Enough to be quick, few enough to fit every client's buffer.
const NAMES: usize = 128;
const BYTES: usize = 32 * 1024;
const SIX_MONTHS: i64 = 182 * 24 * 60 * 60;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl Server {
    pub(super) fn readdir(&mut self, id: u32, reader: &mut Reader<'_>) -> Handled {
        let Handle::Directory(listing) = self.handles.get(reader)? else {
            return Err(Status::failure("Invalid handle"));
        };
        let mut names = Writer::default();
        let mut count = 0;
        while (count as usize) < NAMES && names.len() < BYTES {
            let Some(entry) = listing.read() else { break };
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            // Gone since it was listed.
            let Ok(stat) = statat(listing.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            names.string(name);
            names.string(&self.people.long_name(name, &stat));
            attributes::write(&mut names, &stat);
            count += 1;
        }
        if count == 0 {
            return Err(Status::Eof);
        }
        self.out.packet(kind::NAME, id, |writer| {
            writer.u32(count);
            writer.raw(names.as_slice());
        });
        Ok(())
    }
}

/// Names of owners, read once per session.
#[derive(Debug, Default)]
pub struct People {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
    read: bool,
}

impl People {
    fn long_name(&mut self, name: &[u8], stat: &Stat) -> Vec<u8> {
        if !self.read {
            self.users = account::names("/etc/passwd");
            self.groups = account::names("/etc/group");
            self.read = true;
        }
        let of = |names: &HashMap<u32, String>, id: u32| names.get(&id).cloned().unwrap_or(id.to_string());
        let mut line = format!(
            "{} {:3} {:8} {:8} {:8} {} ",
            mode(stat.st_mode),
            stat.st_nlink,
            of(&self.users, stat.st_uid),
            of(&self.groups, stat.st_gid),
            stat.st_size,
            date(stat.st_mtime, clock_gettime(ClockId::Realtime).tv_sec),
        )
        .into_bytes();
        line.extend_from_slice(name);
        line
    }
}

fn mode(mode: u32) -> String {
    let kind = match FileType::from_raw_mode(mode) {
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        _ => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// As `ls` does: the time of day for what is recent, the year for the rest.
fn date(time: i64, now: i64) -> String {
    let (year, month, day) = civil(time.div_euclid(86_400));
    let name = usize::try_from(month - 1).ok().and_then(|index| MONTHS.get(index)).unwrap_or(&"???");
    if (now - SIX_MONTHS..=now + 60).contains(&time) {
        let seconds = time.rem_euclid(86_400);
        format!("{name} {day:2} {:02}:{:02}", seconds / 3600, seconds / 60 % 60)
    } else {
        format!("{name} {day:2}  {year:4}")
    }
}

/// Days since 1970 to a date, counting years from March so that the leap day
/// is a year's last.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_read_as_in_ls() {
        assert_eq!(mode(0o100_644), "-rw-r--r--");
        assert_eq!(mode(0o041_777), "drwxrwxrwt");
        assert_eq!(mode(0o104_755), "-rwsr-xr-x");
        assert_eq!(mode(0o102_644), "-rw-r-Sr--");
        assert_eq!(mode(0o120_777), "lrwxrwxrwx");
    }

    #[test]
    fn dates_read_as_in_ls() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(-1), (1969, 12, 31));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(date(1_709_210_096, 1_709_210_100), "Feb 29 12:34");
        assert_eq!(date(0, 1_709_210_100), "Jan  1  1970");
    }
}
