package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// maxPage bounds what is read of a page, in bytes.
const maxPage = 4 << 20

// direct makes requests without a proxy, whatever the environment says, and keeps no connections.
var direct = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// fetch reads a page that must answer 200.
func fetch(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := direct.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxPage))
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answered %s: %.500s", url, res.Status, body)
	}
	return string(body), nil
}
