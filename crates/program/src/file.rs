//! The Program file: a header page with magic, format number, build and a table of sections, then the sections. A digest
//! of the header and of every section finds any flipped byte. No weights are inside. Bytes are a function of the Program.

use crate::program::{BUILD, Program, Step};

/// First bytes of a Program file.
pub const MAGIC: [u8; 8] = *b"PRECAST\n";
/// Changes with every change of the layout; there is no migration.
pub const FORMAT: u32 = 1;
const HEADER_BYTES: usize = 4096;
const DIGEST_BYTES: usize = 32;
/// Bytes of a section table row: offset, length, digest.
const ROW_BYTES: usize = 8 + 8 + DIGEST_BYTES;
const BUILD_BYTES: usize = 64;
/// Where the section table starts: after magic, format, section count and build.
const TABLE_AT: usize = 8 + 4 + 4 + BUILD_BYTES;
const SECTIONS: [&str; 3] = ["interface", "steps", "graph"];

/// Why bytes are not a Program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// Not a Program file at all.
    #[error("this is not a Program file: it does not start with the Program magic")]
    Magic,
    /// Written by another format of the file.
    #[error("the Program file has format {found}; this build reads format {FORMAT}: compile the model again")]
    Format {
        /// Format in the file.
        found: u32,
    },
    /// Written by another build.
    #[error("the Program file was written by '{found}'; this is '{BUILD}': compile the model again")]
    Build {
        /// Build in the file.
        found: String,
    },
    /// Bytes are missing or changed.
    #[error("the Program file is damaged: {0}")]
    Damaged(String),
}

/// The bytes of a Program file.
pub fn encode(program: &Program) -> Vec<u8> {
    let interface = Program { steps: Vec::new(), graph: String::new(), ..program.clone() };
    let sections: [Vec<u8>; 3] = [
        postcard::to_stdvec(&interface).expect("plain data always encodes"),
        postcard::to_stdvec(&program.steps).expect("plain data always encodes"),
        program.graph.as_bytes().to_vec(),
    ];
    let mut header = vec![0u8; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    header[12..16].copy_from_slice(&(sections.len() as u32).to_le_bytes());
    header[16..16 + BUILD.len()].copy_from_slice(BUILD.as_bytes());
    let mut body = Vec::new();
    for (index, section) in sections.iter().enumerate() {
        let offset = (HEADER_BYTES + body.len()) as u64;
        let row = TABLE_AT + index * ROW_BYTES;
        header[row..row + 8].copy_from_slice(&offset.to_le_bytes());
        header[row + 8..row + 16].copy_from_slice(&(section.len() as u64).to_le_bytes());
        header[row + 16..row + ROW_BYTES].copy_from_slice(blake3::hash(section).as_bytes());
        body.extend_from_slice(section);
    }
    let digest_at = HEADER_BYTES - DIGEST_BYTES;
    let digest = blake3::hash(&header[..digest_at]);
    header[digest_at..].copy_from_slice(digest.as_bytes());
    header.extend_from_slice(&body);
    header
}

/// The Program in the bytes of a file. Everything is checked; nothing is trusted.
pub fn decode(bytes: &[u8]) -> Result<Program, FileError> {
    if !bytes.starts_with(&MAGIC) {
        return Err(FileError::Magic);
    }
    let damaged = |text: &str| FileError::Damaged(text.to_string());
    let header = bytes.get(..HEADER_BYTES).ok_or_else(|| damaged("it is shorter than its header"))?;
    let format = u32::from_le_bytes(header[8..12].try_into().map_err(|_| damaged("format"))?);
    if format != FORMAT {
        return Err(FileError::Format { found: format });
    }
    let digest_at = HEADER_BYTES - DIGEST_BYTES;
    if blake3::hash(&header[..digest_at]).as_bytes() != &header[digest_at..] {
        return Err(damaged("the header's digest is wrong"));
    }
    let build = String::from_utf8_lossy(&header[16..16 + BUILD_BYTES]).trim_end_matches('\0').to_string();
    if build != BUILD {
        return Err(FileError::Build { found: build });
    }
    let count = u32::from_le_bytes(header[12..16].try_into().map_err(|_| damaged("sections"))?);
    if count as usize != SECTIONS.len() {
        return Err(damaged("the number of sections is wrong"));
    }
    let mut end = HEADER_BYTES as u64;
    let mut sections = Vec::new();
    for (index, name) in SECTIONS.iter().enumerate() {
        let row = &header[TABLE_AT + index * ROW_BYTES..TABLE_AT + (index + 1) * ROW_BYTES];
        let number = |range: std::ops::Range<usize>| {
            row[range].try_into().map(u64::from_le_bytes).map_err(|_| damaged("the section table"))
        };
        let (offset, length) = (number(0..8)?, number(8..16)?);
        let stop = offset.checked_add(length).filter(|&stop| offset == end && stop <= bytes.len() as u64);
        let stop = stop.ok_or_else(|| damaged(&format!("section '{name}' lies outside of the file")))?;
        let section = &bytes[offset as usize..stop as usize];
        if blake3::hash(section).as_bytes() != &row[16..] {
            return Err(damaged(&format!("the digest of section '{name}' is wrong")));
        }
        sections.push(section);
        end = stop;
    }
    if end != bytes.len() as u64 {
        return Err(damaged("there are bytes after the last section"));
    }
    let program: Program =
        postcard::from_bytes(sections[0]).map_err(|error| damaged(&format!("section 'interface': {error}")))?;
    let steps: Vec<Step> =
        postcard::from_bytes(sections[1]).map_err(|error| damaged(&format!("section 'steps': {error}")))?;
    let graph = String::from_utf8(sections[2].to_vec()).map_err(|_| damaged("section 'graph' is not text"))?;
    let program = Program { steps, graph, ..program };
    program.verify().map_err(FileError::Damaged)?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::Bucket;
    use crate::program::{Place, Port, Slot};

    fn program() -> Program {
        let port =
            |name: &str| Port { name: name.into(), dtype: "f32".into(), shape: vec![2], bytes: 8, in_place_of: None };
        Program {
            target: "cpu:portable threads=1".into(),
            build: BUILD.into(),
            bucket: Bucket::new([("n".to_string(), 2)]),
            inputs: vec![port("x")],
            outputs: vec![port("y")],
            steps: vec![Step {
                kernel: "copy".into(),
                parameters: vec![1, 2, 3],
                reads: vec![Slot { place: Place::Input(0), bytes: 8 }],
                writes: vec![Slot { place: Place::Output(0), bytes: 8 }],
                provenance: vec!["node".into()],
                value: 1,
            }],
            arena_bytes: 64,
            live_bytes_max: 64,
            constants: Vec::new(),
            graph: "graph".into(),
        }
    }

    #[test]
    fn a_program_reads_back_as_it_was_written() {
        assert_eq!(decode(&encode(&program())), Ok(program()));
    }

    #[test]
    fn every_flipped_byte_is_found() {
        let bytes = encode(&program());
        for at in (0..bytes.len()).step_by(7).chain(HEADER_BYTES..bytes.len()) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            assert!(decode(&changed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn every_truncation_is_found() {
        let bytes = encode(&program());
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "length {length}");
        }
    }

    #[test]
    fn a_slot_outside_its_buffer_is_refused() {
        let mut bad = program();
        bad.steps[0].reads[0].bytes = 9;
        assert!(matches!(decode(&encode(&bad)), Err(FileError::Damaged(_))));
    }

    #[test]
    fn a_step_that_writes_its_input_is_refused() {
        let mut bad = program();
        bad.steps[0].writes[0].place = Place::Input(0);
        assert!(matches!(decode(&encode(&bad)), Err(FileError::Damaged(_))));
    }
}
