//! The fake runtime compiler: the image is the source text itself.

use crate::state::{Call, Handle, State, Status, Vendor};

/// A line that does not compile.
const ERROR_LINE: &str = "#error_for_test";

const INVALID_INPUT: i32 = 3;
const INVALID_PROGRAM: i32 = 4;
const INVALID_OPTION: i32 = 5;
const COMPILATION: i32 = 6;

const MAGIC: &[u8; 16] = b"PRECAST-FAKE-IMG";
const HEADER_BYTES: usize = 32;

/// A source text inside the compiler.
#[derive(Default)]
pub(crate) struct Program {
    text: String,
    name: String,
    pub(crate) log: String,
    pub(crate) code: Vec<u8>,
}

/// What a module is loaded from: a magic word, two lengths, the architecture and the text.
pub(crate) struct Image {
    pub(crate) arch: String,
    pub(crate) text: String,
}

impl Image {
    fn write(&self) -> Vec<u8> {
        let (arch, text) = (self.arch.as_bytes(), self.text.as_bytes());
        let lengths = [(arch.len() as u64).to_le_bytes(), (text.len() as u64).to_le_bytes()].concat();
        [MAGIC.as_slice(), &lengths, arch, text].concat()
    }

    /// Reads an image; none if it is something else.
    ///
    /// # Safety
    /// There must be as many bytes as the header says, or at least a magic word.
    pub(crate) unsafe fn read(image: *const u8) -> Option<Image> {
        // SAFETY: the caller says that at least a magic word is there.
        if unsafe { std::slice::from_raw_parts(image, MAGIC.len()) } != MAGIC {
            return None;
        }
        // SAFETY: after the magic word the rest of the header follows.
        let header = unsafe { std::slice::from_raw_parts(image, HEADER_BYTES) };
        let length = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes")) as usize;
        let (arch_len, text_len) = (length(16), length(24));
        // SAFETY: the header says how long the image is.
        let words = unsafe { std::slice::from_raw_parts(image.add(HEADER_BYTES), arch_len + text_len) };
        let arch = String::from_utf8(words[..arch_len].to_vec()).ok()?;
        Some(Image { arch, text: String::from_utf8(words[arch_len..].to_vec()).ok()? })
    }
}

impl State {
    pub(crate) fn program_create(&mut self, call: &Call, program: &mut Handle, text: &str, name: &str) -> Status {
        *program = 0;
        if !call.gives_null() {
            *program = self.new_handle();
            let made = Program { text: text.to_string(), name: name.to_string(), ..Program::default() };
            self.programs.insert(*program, made);
        }
        Ok(())
    }

    pub(crate) fn program_destroy(&mut self, call: &Call, program: &mut Handle) -> Status {
        if self.programs.remove(program).is_none() {
            self.dead_handle(call, "program", *program);
            return Err(INVALID_PROGRAM);
        }
        *program = 0;
        Ok(())
    }

    pub(crate) fn program(&mut self, call: &Call, program: Handle) -> Result<&mut Program, i32> {
        if !self.programs.contains_key(&program) {
            self.dead_handle(call, "program", program);
            return Err(INVALID_PROGRAM);
        }
        Ok(self.programs.get_mut(&program).expect("the program was looked up above"))
    }

    pub(crate) fn program_compile(&mut self, call: &Call, program: Handle, options: &[String]) -> Status {
        let (option, arch_start) = match call.vendor {
            Vendor::Cuda => ("--gpu-architecture=", "sm_"),
            Vendor::Hip => ("--offload-arch=", "gfx"),
        };
        let arch = options.iter().find_map(|word| word.strip_prefix(option)).unwrap_or_default().to_string();
        let found = self.program(call, program)?;
        if !arch.starts_with(arch_start) {
            found.log = format!("error: '{arch}' is not an architecture");
            return Err(INVALID_OPTION);
        }
        if let Some(line) = found.text.lines().position(|line| line.trim() == ERROR_LINE) {
            found.log = format!("{}({}): error: this line does not compile\n", found.name, line + 1);
            return Err(COMPILATION);
        }
        if found.text.is_empty() {
            return Err(INVALID_INPUT);
        }
        found.code = Image { arch, text: found.text.clone() }.write();
        Ok(())
    }
}
