//! Keys and values of pages in the memory of the host. A page holds, token after token, keys and then values of every layer of its
//! group as [heads, size]: layers that see whole rows are a group, and those of each window. So a step writes what it computed for
//! a row in one piece; pages are read only where a row is put together again. Memory of a page is taken when it is first
//! written.

use crate::kv_cache::{Half, LayerLayout, NoMemory, windows_of};
use crate::line_memory::LineMemory;

use super::page_pool::PageId;
use super::runner::{StepRow, WindowPages};

/// Pages of all groups.
pub struct PageStores {
    page_tokens: usize,
    /// That of layers that see whole rows first, then those of each window, the least first.
    groups: Vec<PageStore>,
    /// The group of each layer.
    group_of: Vec<usize>,
}

impl PageStores {
    /// Pages of so many tokens for these layers, none written.
    pub fn new(layers: &[LayerLayout], page_tokens: usize) -> PageStores {
        let windows: Vec<Option<usize>> =
            std::iter::once(None).chain(windows_of(layers).into_iter().map(Some)).collect();
        let of_window = |window: &Option<usize>| {
            let own = |layer: &LayerLayout| match layer.window == *window {
                true => *layer,
                false => LayerLayout { heads: 0, ..*layer },
            };
            PageStore::new(&layers.iter().map(own).collect::<Vec<LayerLayout>>(), page_tokens)
        };
        let group_of = |layer: &LayerLayout| windows.iter().position(|window| *window == layer.window).unwrap_or(0);
        let (groups, group_of) = (windows.iter().map(of_window).collect(), layers.iter().map(group_of).collect());
        PageStores { page_tokens, groups, group_of }
    }

    /// Tokens of a page.
    pub fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// Bytes that pages take.
    pub fn bytes(&self) -> usize {
        self.groups.iter().map(PageStore::bytes).sum()
    }

    /// Takes memory for the pages that new tokens of a row will lie in, so that writing them takes none.
    pub fn reserve(&mut self, row: &StepRow<'_>) -> Result<(), NoMemory> {
        let page_tokens = self.page_tokens;
        for (number, group) in self.groups.iter_mut().enumerate() {
            let WindowPages { first, pages } = table_of(row, number);
            group.reserve(pages, row.cached - first * page_tokens, row.tokens.len())?;
        }
        Ok(())
    }

    /// Writes keys or values of new tokens of a row: `rows` holds [heads, length, size], of which the first `valid` tokens
    /// of each head belong to positions from `start` on.
    pub fn write(
        &mut self,
        row: &StepRow<'_>,
        (layer, half): (usize, Half),
        start: usize,
        rows: &[u8],
        (length, valid): (usize, usize),
    ) {
        let group = self.group_of[layer];
        let WindowPages { first, pages } = table_of(row, group);
        self.groups[group].write(pages, (layer, half), start - first * self.page_tokens, rows, (length, valid));
    }

    /// Keys or values of the tokens of a row that lie in written pages: each with its position, as [heads, size].
    pub fn read<'s>(
        &'s self,
        row: &'s StepRow<'_>,
        layer: usize,
        half: Half,
    ) -> impl Iterator<Item = (usize, &'s [u8])> + 's {
        let group = self.group_of[layer];
        let WindowPages { first, pages } = table_of(row, group);
        let read = move |(number, &page): (usize, &PageId)| {
            let start = (first + number) * self.page_tokens;
            self.groups[group].read(page, layer, half).map(move |tokens| (start..).zip(tokens))
        };
        pages.iter().enumerate().filter_map(read).flatten()
    }
}

/// The pages of a row in a group.
fn table_of<'r>(row: &StepRow<'r>, group: usize) -> WindowPages<'r> {
    let window = group.checked_sub(1).and_then(|window| row.windows.get(window));
    window.copied().unwrap_or(WindowPages { first: 0, pages: row.pages })
}

/// Where one half of a layer lies in a token of a page.
#[derive(Clone, Copy, Debug)]
struct Part {
    first_byte: usize,
    heads: usize,
    /// Bytes of one head.
    head_bytes: usize,
}

/// Keys and values of pages.
pub struct PageStore {
    page_tokens: usize,
    /// Bytes of a token of all layers.
    token_bytes: usize,
    /// Keys and values of each layer.
    parts: Vec<[Part; 2]>,
    pages: Vec<Option<LineMemory>>,
}

impl PageStore {
    /// Pages of so many tokens for these layers, none written.
    pub fn new(layers: &[LayerLayout], page_tokens: usize) -> PageStore {
        let mut token_bytes = 0;
        let mut part = |heads: usize, head_bytes: usize| {
            let part = Part { first_byte: token_bytes, heads, head_bytes };
            token_bytes += heads * head_bytes;
            part
        };
        let parts = layers.iter().map(|layer| {
            let element = layer.dtype.size_bytes();
            [part(layer.heads, layer.key_size * element), part(layer.heads, layer.value_size * element)]
        });
        let parts = parts.collect();
        PageStore { page_tokens, token_bytes, parts, pages: Vec::new() }
    }

    /// Takes memory for the pages that new tokens of a row will lie in, so that writing them takes none.
    pub fn reserve(&mut self, pages: &[PageId], start: usize, count: usize) -> Result<(), NoMemory> {
        let written = start / self.page_tokens..(start + count).div_ceil(self.page_tokens);
        for page in pages.get(written).unwrap_or_default() {
            let number = page.0 as usize;
            if number >= self.pages.len() {
                self.pages.resize_with(number + 1, || None);
            }
            if self.pages[number].is_none() {
                self.pages[number] = Some(LineMemory::zeros(self.page_tokens * self.token_bytes)?);
            }
        }
        Ok(())
    }

    /// Bytes that pages take.
    pub fn bytes(&self) -> usize {
        self.pages.iter().flatten().map(LineMemory::len).sum()
    }

    /// Writes keys or values of new tokens of a row: `rows` holds [heads, length, size], of which the first `valid` tokens
    /// of each head belong to positions from `start` on.
    pub fn write(
        &mut self,
        pages: &[PageId],
        (layer, half): (usize, Half),
        start: usize,
        rows: &[u8],
        (length, valid): (usize, usize),
    ) {
        let (part, page_tokens, token_bytes) = (self.part(layer, half), self.page_tokens, self.token_bytes);
        for token in 0..valid {
            let (number, place) = ((start + token) / page_tokens, (start + token) % page_tokens);
            let target = &mut self.page_mut(pages[number])[place * token_bytes + part.first_byte..];
            for head in 0..part.heads {
                let from = &rows[(head * length + token) * part.head_bytes..][..part.head_bytes];
                target[head * part.head_bytes..][..part.head_bytes].copy_from_slice(from);
            }
        }
    }

    /// Keys or values of the tokens of a page, each [heads, size]; none if it was never written.
    pub fn read(&self, page: PageId, layer: usize, half: Half) -> Option<impl Iterator<Item = &[u8]>> {
        let Part { first_byte, heads, head_bytes } = self.part(layer, half);
        let tokens = self.pages.get(page.0 as usize)?.as_ref()?.bytes().chunks_exact(self.token_bytes.max(1));
        Some(tokens.map(move |token| &token[first_byte..][..heads * head_bytes]))
    }

    fn part(&self, layer: usize, half: Half) -> Part {
        match half {
            Half::Keys => self.parts[layer][0],
            Half::Values => self.parts[layer][1],
        }
    }

    fn page_mut(&mut self, page: PageId) -> &mut [u8] {
        let page = self.pages.get_mut(page.0 as usize).and_then(Option::as_mut);
        page.expect("memory was reserved for the pages of new tokens").bytes_mut()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::row::RowId;
    use super::*;
    use precast_tensor::DType;

    #[test]
    fn layers_with_a_window_have_pages_of_their_own() {
        let layer = |window| LayerLayout { heads: 1, key_size: 1, value_size: 1, dtype: DType::U8, window, slack: 0 };
        let mut stores = PageStores::new(&[layer(None), layer(Some(3)), layer(None)], 2);
        let (pages, window) = ([PageId(0), PageId(1), PageId(2)], [PageId(7)]);
        let windows = [WindowPages { first: 2, pages: &window }];
        let row = StepRow {
            row: RowId(0),
            tokens: &[1],
            cached: 4,
            pages: &pages,
            windows: &windows,
            scored: 1,
            takes_largest: false,
            is_long: false,
            adapter: None,
        };
        stores.reserve(&row).unwrap();
        (0..3).for_each(|layer| stores.write(&row, (layer, Half::Keys), 4, &[10 + layer as u8], (1, 1)));
        let read = |layer| stores.read(&row, layer, Half::Keys).collect::<Vec<(usize, &[u8])>>();
        assert_eq!(
            (read(0), read(1), read(2)),
            (vec![(4, &[10][..]), (5, &[0])], vec![(4, &[11][..]), (5, &[0])], vec![(4, &[12][..]), (5, &[0])])
        );
        // Two tokens of keys and values of two layers, and of one.
        assert_eq!(stores.bytes(), 8 + 4);
        let without = StepRow { windows: &[], ..row };
        assert!(
            stores.read(&without, 1, Half::Keys).next().is_none(),
            "the row's other pages hold nothing of the window"
        );
    }

    #[test]
    fn tokens_lie_where_their_positions_say_across_pages() {
        let layer = LayerLayout { heads: 2, key_size: 1, value_size: 2, dtype: DType::F32, window: None, slack: 0 };
        let mut store = PageStore::new(&[layer], 2);
        // Three tokens of two heads, of which two are valid, from position 1 on.
        let rows: Vec<u8> = [10.0f32, 11.0, 12.0, 20.0, 21.0, 22.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        store.reserve(&[PageId(3), PageId(0)], 1, 2).unwrap();
        store.write(&[PageId(3), PageId(0)], (0, Half::Keys), 1, &rows, (3, 2));
        let read = |page: u32| {
            let bytes = store.read(PageId(page), 0, Half::Keys).into_iter().flatten().flatten();
            let bytes: Vec<u8> = bytes.copied().collect();
            bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect::<Vec<f32>>()
        };
        assert_eq!((read(3), read(0), read(1)), (vec![0.0, 0.0, 10.0, 20.0], vec![11.0, 21.0, 0.0, 0.0], vec![]));
        assert_eq!(store.bytes(), 2 * 2 * (2 + 4) * 4);
    }
}
