//! Messages in frames. A message is postcard, and behind what version 1 had of it come
//! the fields that came later, each an `Option`, in the order in which they came.

use crate::{
    Answer, Control, Event, Exit, Feature, FrameError, HEADER, Hello, Incoming, Kind, Reply, Version, frame,
};
use serde::{Serialize, de::DeserializeOwned};

/// The name under which version 1 has [`crate::Equip::known_hosts`] among the variables.
const KNOWN_HOSTS: &str = "BERTH_KNOWN_HOSTS";

/// What a frame carries besides bytes and openings.
pub trait Message: Sized {
    const KIND: Kind;

    /// Appends it as that version has it.
    fn write(&self, version: Version, frame: Vec<u8>) -> Result<Vec<u8>, FrameError>;

    /// Takes it as that version or an earlier one has it, and returns what is left.
    fn read(version: Version, payload: &[u8]) -> Result<(Self, &[u8]), FrameError>;
}

/// Messages that are what they were in version 1.
macro_rules! unchanged {
    ($($message:ty: $kind:ident),*) => {$(
        impl Message for $message {
            const KIND: Kind = Kind::$kind;

            fn write(&self, _: Version, frame: Vec<u8>) -> Result<Vec<u8>, FrameError> {
                put(self, frame)
            }

            fn read(_: Version, payload: &[u8]) -> Result<(Self, &[u8]), FrameError> {
                take(payload)
            }
        }
    )*};
}

unchanged!(Hello: Hello, Reply: Reply, Event: Event, Exit: Exit, Incoming: Incoming, Answer: Answer);

impl Message for Control {
    const KIND: Kind = Kind::Control;

    fn write(&self, version: Version, frame: Vec<u8>) -> Result<Vec<u8>, FrameError> {
        match self {
            Self::Equip(equip) if version.has(Feature::KnownHosts) => {
                put_later(&equip.known_hosts, put(self, frame)?)
            }
            Self::Equip(equip) if !equip.known_hosts.is_empty() => {
                let mut equip = equip.clone();
                equip.environment.push((KNOWN_HOSTS.to_owned(), std::mem::take(&mut equip.known_hosts)));
                put(&Self::Equip(equip), frame)
            }
            _ => put(self, frame),
        }
    }

    fn read(version: Version, payload: &[u8]) -> Result<(Self, &[u8]), FrameError> {
        let (mut control, mut rest) = take(payload)?;
        if let Self::Equip(equip) = &mut control {
            let mut known_hosts = None;
            if version.has(Feature::KnownHosts) {
                (known_hosts, rest) = take_later(rest)?;
            }
            equip.known_hosts = known_hosts.unwrap_or_else(|| {
                let ours = |(name, _): &mut (String, String)| name == KNOWN_HOSTS;
                equip.environment.extract_if(.., ours).map(|(_, lines)| lines).collect()
            });
        }
        Ok((control, rest))
    }
}

/// A whole frame of a message; refuses one that the other side would refuse.
pub fn encode<M: Message>(version: Version, message: &M) -> Result<Vec<u8>, FrameError> {
    seal(M::KIND, message.write(version, vec![0; HEADER])?)
}

/// A message from a payload. In version 1 all of that must be used.
pub fn decode<M: Message>(version: Version, payload: &[u8]) -> Result<M, FrameError> {
    match M::read(version, payload)? {
        (message, []) => Ok(message),
        (message, _) if version.has(Feature::LaterFields) => Ok(message),
        _ => Err(FrameError::Payload),
    }
}

/// Fills in the header that was left free.
pub(crate) fn seal(kind: Kind, mut frame: Vec<u8>) -> Result<Vec<u8>, FrameError> {
    let length = frame.len().saturating_sub(HEADER);
    if length > kind.limit() {
        return Err(FrameError::Length(u32::try_from(length).unwrap_or(u32::MAX)));
    }
    if let Some(place) = frame.first_chunk_mut::<HEADER>() {
        *place = frame::header(kind, length);
    }
    Ok(frame)
}

pub(crate) fn put<T: Serialize + ?Sized>(value: &T, frame: Vec<u8>) -> Result<Vec<u8>, FrameError> {
    postcard::to_extend(value, frame).map_err(|_| FrameError::Payload)
}

pub(crate) fn take<T: DeserializeOwned>(payload: &[u8]) -> Result<(T, &[u8]), FrameError> {
    postcard::take_from_bytes(payload).map_err(|_| FrameError::Payload)
}

fn put_later<T: Serialize>(field: &T, frame: Vec<u8>) -> Result<Vec<u8>, FrameError> {
    put(&Some(field), frame)
}

/// A field that came later. None: the other side has left it out, or does not know it.
fn take_later<T: DeserializeOwned>(rest: &[u8]) -> Result<(Option<T>, &[u8]), FrameError> {
    if rest.is_empty() { Ok((None, rest)) } else { take(rest) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Equip;

    fn equip(environment: &[(&str, &str)], known_hosts: &str) -> Control {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Control::Equip(Equip {
            authority: "pem".into(),
            roots: String::new(),
            environment: environment.iter().map(own).collect(),
            known_hosts: known_hosts.into(),
        })
    }

    fn payload(version: Version, control: &Control) -> Vec<u8> {
        encode(version, control).unwrap().split_off(HEADER)
    }

    #[test]
    fn known_hosts_arrive_whichever_version_they_are_told_in() {
        for known_hosts in ["", "git.example KEY\n"] {
            let control = equip(&[("A", "b")], known_hosts);
            for told in [Version::ONE, Version::TWO] {
                for heard in [told, Version::TWO] {
                    assert_eq!(decode(heard, &payload(told, &control)), Ok(control.clone()), "{told:?}");
                }
            }
        }
    }

    /// A user's variable of that name stays, where it is no longer ours.
    #[test]
    fn version_2_takes_no_variable_for_known_hosts() {
        let control = equip(&[(KNOWN_HOSTS, "mine")], "");
        assert_eq!(decode(Version::TWO, &payload(Version::TWO, &control)), Ok(control));
    }

    #[test]
    fn later_fields_may_be_absent_or_more() {
        let control = equip(&[], "x");
        let whole = payload(Version::TWO, &control);
        // Of version 3, say.
        let more = [&whole[..], &[1, 0xff, 0xff]].concat();
        assert_eq!(decode(Version::TWO, &more), Ok(control.clone()));
        assert_eq!(decode::<Control>(Version::ONE, &more), Err(FrameError::Payload));
        // Left out by name, with something behind it.
        let absent = [&payload(Version::ONE, &equip(&[], ""))[..], &[0, 7]].concat();
        assert_eq!(decode(Version::TWO, &absent), Ok(equip(&[], "")));
        // There, and not whole.
        assert_eq!(decode::<Control>(Version::TWO, &whole[..whole.len() - 1]), Err(FrameError::Payload));
    }

    #[test]
    fn trailing_bytes_do_not_decode_in_version_1() {
        assert_eq!(decode(Version::ONE, &[0]), Ok(Answer::Done));
        assert_eq!(decode::<Answer>(Version::ONE, &[0, 2]), Err(FrameError::Payload));
        assert_eq!(decode(Version::TWO, &[0, 2]), Ok(Answer::Done));
        assert_eq!(decode::<Answer>(Version::TWO, &[]), Err(FrameError::Payload));
    }
}
