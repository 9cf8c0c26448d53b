//! Times and durations as people write them.

use crate::ui::text::{QUOTED, printable};
use berth_types::{Code, Refusal, Span};
use jiff::{Timestamp, ToSpan, civil::Time, tz::TimeZone};

pub fn span(option: &str, text: &str) -> Result<Span, Refusal> {
    text.parse().map_err(|error| {
        let shown = printable(text, QUOTED);
        Refusal::new(Code::Usage, format!("'{shown}' is no duration, {error}"), format!("try {option} 2h"))
    })
}

/// A whole timestamp, or the next time a clock in UTC shows HH:MM.
pub fn time(option: &str, text: &str, now: Timestamp) -> Result<Timestamp, Refusal> {
    let wrong = || {
        let shown = printable(text, QUOTED);
        let hint = format!("try --{option} 06:30, or --{option} 2026-12-24T06:30:00Z");
        Refusal::new(Code::Usage, format!("'{shown}' is no time to come"), hint)
    };
    let at = match text.parse::<Timestamp>() {
        Ok(at) => at,
        Err(_) => {
            let clock: Time = text.parse().map_err(|_| wrong())?;
            let today = now.to_zoned(TimeZone::UTC);
            let at = today.with().time(clock).build().map_err(|_| wrong())?;
            let at = if at.timestamp() > now { at } else { at.checked_add(1.day()).map_err(|_| wrong())? };
            at.timestamp()
        }
    };
    if at > now { Ok(at) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_such_time() {
        let now: Timestamp = "2026-11-16T12:00:00Z".parse().unwrap();
        let read = |text| time("at", text, now).map(|at| at.to_string()).map_err(|refusal| refusal.code);
        assert_eq!(read("12:30"), Ok("2026-11-16T12:30:00Z".into()));
        assert_eq!(read("06:30"), Ok("2026-11-17T06:30:00Z".into()));
        assert_eq!(read("2026-12-24T06:30:00Z"), Ok("2026-12-24T06:30:00Z".into()));
        for bad in ["", "soon", "25:00", "2020-01-01T00:00:00Z", "-1"] {
            assert_eq!(read(bad), Err(Code::Usage), "{bad}");
        }
    }
}
