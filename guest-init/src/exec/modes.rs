//! Terminal modes as RFC 4254 section 8 numbers them, applied to a terminal.

use rustix::termios::{ControlModes, InputModes, LocalModes, OutputModes, SpecialCodeIndex as Code, Termios};

const DISABLED: u32 = 255;
const ISPEED: u8 = 128;
const OSPEED: u8 = 129;

/// Opcodes that Linux has no mode for are passed over, as sshd does.
pub fn apply(termios: &mut Termios, modes: &[(u8, u32)]) {
    for &(opcode, value) in modes {
        if let Some(code) = special(opcode) {
            let byte = if value == DISABLED { 0 } else { u8::try_from(value).unwrap_or(0) };
            #[allow(clippy::indexing_slicing, reason = "a typed index into a fixed table")]
            {
                termios.special_codes[code] = byte;
            }
        } else if let Some(mode) = input(opcode) {
            termios.input_modes.set(mode, value != 0);
        } else if let Some(mode) = local(opcode) {
            termios.local_modes.set(mode, value != 0);
        } else if let Some(mode) = output(opcode) {
            termios.output_modes.set(mode, value != 0);
        } else {
            control(termios, opcode, value);
        }
    }
}

const fn special(opcode: u8) -> Option<Code> {
    Some(match opcode {
        1 => Code::VINTR,
        2 => Code::VQUIT,
        3 => Code::VERASE,
        4 => Code::VKILL,
        5 => Code::VEOF,
        6 => Code::VEOL,
        7 => Code::VEOL2,
        8 => Code::VSTART,
        9 => Code::VSTOP,
        10 => Code::VSUSP,
        12 => Code::VREPRINT,
        13 => Code::VWERASE,
        14 => Code::VLNEXT,
        16 => Code::VSWTC,
        18 => Code::VDISCARD,
        _ => return None,
    })
}

const fn input(opcode: u8) -> Option<InputModes> {
    Some(match opcode {
        30 => InputModes::IGNPAR,
        31 => InputModes::PARMRK,
        32 => InputModes::INPCK,
        33 => InputModes::ISTRIP,
        34 => InputModes::INLCR,
        35 => InputModes::IGNCR,
        36 => InputModes::ICRNL,
        37 => InputModes::IUCLC,
        38 => InputModes::IXON,
        39 => InputModes::IXANY,
        40 => InputModes::IXOFF,
        41 => InputModes::IMAXBEL,
        42 => InputModes::IUTF8,
        _ => return None,
    })
}

const fn local(opcode: u8) -> Option<LocalModes> {
    Some(match opcode {
        50 => LocalModes::ISIG,
        51 => LocalModes::ICANON,
        52 => LocalModes::XCASE,
        53 => LocalModes::ECHO,
        54 => LocalModes::ECHOE,
        55 => LocalModes::ECHOK,
        56 => LocalModes::ECHONL,
        57 => LocalModes::NOFLSH,
        58 => LocalModes::TOSTOP,
        59 => LocalModes::IEXTEN,
        60 => LocalModes::ECHOCTL,
        61 => LocalModes::ECHOKE,
        62 => LocalModes::PENDIN,
        _ => return None,
    })
}

const fn output(opcode: u8) -> Option<OutputModes> {
    Some(match opcode {
        70 => OutputModes::OPOST,
        71 => OutputModes::OLCUC,
        72 => OutputModes::ONLCR,
        73 => OutputModes::OCRNL,
        74 => OutputModes::ONOCR,
        75 => OutputModes::ONLRET,
        _ => return None,
    })
}

fn control(termios: &mut Termios, opcode: u8, value: u32) {
    match opcode {
        // The character size is a field of two bits, not a flag each.
        90 | 91 if value != 0 => {
            termios.control_modes.remove(ControlModes::CSIZE);
            termios.control_modes.insert(if opcode == 90 { ControlModes::CS7 } else { ControlModes::CS8 });
        }
        92 => termios.control_modes.set(ControlModes::PARENB, value != 0),
        93 => termios.control_modes.set(ControlModes::PARODD, value != 0),
        // A speed that the kernel does not know is no reason to refuse a terminal.
        ISPEED => drop(termios.set_input_speed(value)),
        OSPEED => drop(termios.set_output_speed(value)),
        _ => {}
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;
    use rustix::{
        pty::{OpenptFlags, grantpt, openpt, unlockpt},
        termios::{OptionalActions, tcgetattr, tcsetattr},
    };

    #[test]
    fn modes_reach_a_real_terminal() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let mut termios = tcgetattr(&master).unwrap();
        let modes = [
            (1, 7),
            (5, 255),
            (36, 0),
            (42, 1),
            (53, 0),
            (59, 1),
            (72, 0),
            (91, 1),
            (128, 19200),
            (129, 19200),
            (11, 1),
            (200, 9),
        ];
        apply(&mut termios, &modes);
        tcsetattr(&master, OptionalActions::Now, &termios).unwrap();
        let seen = tcgetattr(&master).unwrap();
        assert_eq!(seen.special_codes[Code::VINTR], 7);
        assert_eq!(seen.special_codes[Code::VEOF], 0);
        assert!(!seen.input_modes.contains(InputModes::ICRNL));
        assert!(seen.input_modes.contains(InputModes::IUTF8));
        assert!(!seen.local_modes.contains(LocalModes::ECHO));
        assert!(seen.local_modes.contains(LocalModes::IEXTEN));
        assert!(!seen.output_modes.contains(OutputModes::ONLCR));
        assert_eq!(seen.output_speed(), 19200);
    }

    #[test]
    fn any_opcode_and_value_is_survived() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        let mut termios = tcgetattr(&master).unwrap();
        let modes: Vec<(u8, u32)> =
            (0..=255).flat_map(|opcode| [0, 1, 255, 256, u32::MAX].map(|value| (opcode, value))).collect();
        apply(&mut termios, &modes);
    }
}
