// Puts new tokens behind cached ones, in words of W. A block has one head of a cache; where the result is not the cache itself,
// it copies that first. Of pages, a block has one head of one row's new tokens; where the result is not the pages themselves,
// the first row's copies them and then puts in the tokens of all rows.

DEVICE void append_tokens(const W *cache, const W *tokens, W *out, int cached, int added, int slots, int words) {
    int last = added < LENGTH ? added : LENGTH, first = last > slots ? last - slots : 0;
    if (cache != out) {
        for (int at = threadIdx.x; at < slots * words; at += THREADS) out[at] = cache[at];
        sync_block();
    }
    for (int at = threadIdx.x; at < (last - first) * words; at += THREADS) {
        int token = first + at / words, word = at % words;
        out[(i64)((cached + token) % slots) * words + word] = tokens[(i64)token * words + word];
    }
}

// The new tokens of a row in one head of its pages. Tokens behind the pages of the row, or in a page that there is not, are not
// kept.
DEVICE void append_row_to_pages(const W *tokens, W *out, const i32 *pages, int width, int cached, int added, int head,
                                int heads, int page_tokens, int words, i64 page_count) {
    int last = added < LENGTH ? added : LENGTH;
    for (int at = threadIdx.x; at < last * words; at += THREADS) {
        int token = at / words, word = at % words, position = cached + token, number = position / page_tokens;
        int page = number < width ? pages[number] : -1;
        if (page < 0 || page >= page_count) continue;
        i64 place = ((i64)page * heads + head) * page_tokens + position % page_tokens;
        out[place * words + word] = tokens[(i64)token * words + word];
    }
}

DEVICE void append_to_pages(const W *cache, const W *tokens, W *out, const i32 *pages, int width, const i32 *cached,
                            const i32 *added, int row, int rows, int head, int heads, int page_tokens, int words,
                            i64 page_count) {
    int end = row + 1;
    if (cache != out) {
        // Who copies a page must write it too: blocks do not wait for one another.
        if (row > 0) return;
        end = rows;
        i64 page_words = (i64)page_tokens * words;
        for (i64 at = threadIdx.x; at < page_count * page_words; at += THREADS) {
            i64 place = (at / page_words * heads + head) * page_words + at % page_words;
            out[place] = cache[place];
        }
        sync_block();
    }
    for (; row < end; row++)
        append_row_to_pages(tokens + ((i64)row * heads + head) * LENGTH * words, out, pages + (i64)row * width, width,
                            cached[row], added[row], head, heads, page_tokens, words, page_count);
}
